"""Models out of files: what was written is what is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import attrs
import pytest
import torch

from impl.runner.config import TINY_MODELS
from impl.runner.errors import RunnerError
from impl.runner.gguf_file import translate
from impl.runner.loading import load_model
from impl.runner.weights import compute_shapes, make_tensors, make_weights

gguf = pytest.importorskip("gguf", reason="needs the package gguf")
safetensors = pytest.importorskip("safetensors.torch", reason="needs the package safetensors")

ARCHITECTURES = {
    "tiny": "LlamaForCausalLM",
    "tiny-smollm": "LlamaForCausalLM",
    "tiny-llama3": "LlamaForCausalLM",
    "tiny-qwen2": "Qwen2ForCausalLM",
    "tiny-qwen3": "Qwen3ForCausalLM",
}


def make_fields(name):
    """The fields of a config.json."""
    config = TINY_MODELS[name]
    fields = attrs.asdict(config, filter=lambda field, _: field.name != "rope_scaling")
    for ours in ("qkv_bias", "output_bias", "qk_norm"):
        del fields[ours]
    scaling = attrs.asdict(config.rope_scaling)
    fields["rope_scaling"] = {"rope_type": scaling.pop("kind"), **scaling}
    return {**fields, "architectures": [ARCHITECTURES[name]], "hidden_act": "silu"}


def write_folder(folder, name, num_files=1, **given):
    """Writes a model as Hugging Face keeps it; returns where."""
    (folder / "config.json").write_text(json.dumps({**make_fields(name), **given}))
    tensors = make_tensors(TINY_MODELS[name])
    if num_files == 1:
        safetensors.save_file(tensors, folder / "model.safetensors")
        return str(folder)
    weight_map = {key: f"part-{n % num_files}.safetensors" for n, key in enumerate(tensors)}
    for file in set(weight_map.values()):
        part = {key: tensor for key, tensor in tensors.items() if weight_map[key] == file}
        safetensors.save_file(part, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    return str(folder)


def get_all(weights):
    """Every tensor of a model."""
    layers = [tensor for layer in weights.layers for tensor in attrs.astuple(layer, recurse=False)]
    return [weights.embedding, weights.norm, weights.head, *layers]


def num_differing(expected, actual, tolerance=0.0):
    """Counts the tensors that are not the same."""
    pairs = zip(get_all(expected), get_all(actual), strict=True)
    return sum(
        old is not new and not torch.allclose(old, new, atol=tolerance, rtol=0)
        for old, new in pairs
    )


@pytest.mark.parametrize("num_files", [1, 3])
@pytest.mark.parametrize("name", TINY_MODELS)
def test_a_hugging_face_folder_is_loaded(tmp_path, name, num_files):
    """Config and weights of a folder, of one file or of several, are those that were written."""
    config, weights = load_model(write_folder(tmp_path, name, num_files))
    assert TINY_MODELS[name] == config
    assert num_differing(make_weights(config), weights) == 0


def test_newer_files_say_all_of_rope_in_one_place(tmp_path):
    """`rope_parameters` has the base, too."""
    given = {
        "rope_theta": None,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0},
    }
    config, _ = load_model(write_folder(tmp_path, "tiny", **given))
    assert ("linear", 2.0, 77.0) == (
        config.rope_scaling.kind,
        config.rope_scaling.factor,
        config.rope_theta,
    )


def test_biases_of_attention_are_loaded(tmp_path):
    """A Llama with `attention_bias` has four biases in each layer."""
    config = attrs.evolve(TINY_MODELS["tiny"], qkv_bias=True, output_bias=True)
    folder = write_folder(tmp_path, "tiny", attention_bias=True)
    safetensors.save_file(make_tensors(config), tmp_path / "model.safetensors")
    loaded, weights = load_model(folder)
    assert config == loaded
    assert num_differing(make_weights(config), weights) == 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "is of the architecture GPT2LMHeadModel"),
        ({"hidden_act": "gelu"}, "has hidden_act='gelu'; this runner has 'silu' only"),
        ({"mlp_bias": True}, "has mlp_bias=True; this runner has False only"),
        ({"use_sliding_window": True}, "has use_sliding_window=True"),
        ({"quantization_config": {"bits": 4}}, "has quantization_config="),
        ({"rope_scaling": {"rope_type": "yarn"}}, "rope_type='yarn' is unknown"),
        ({"rope_scaling": {"rope_type": "linear"}}, "has no 'factor'"),
        ({"hidden_size": 32}, "has the shape"),
        ({"hidden_size": "64"}, "hidden_size='64' is no whole number above 0"),
        ({"num_hidden_layers": 2.5}, "num_hidden_layers=2.5 is no whole number above 0"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers=1000000000 is above 4096"),
        ({"max_position_embeddings": 10**12}, "max_position_embeddings=1000000000000 is above"),
        ({"num_attention_heads": "4", "head_dim": None}, "makes no sense: unsupported operand"),
        ({"num_attention_heads": 0, "head_dim": None}, "makes no sense: .* by zero"),
        ({"rms_norm_eps": float("nan")}, "rms_norm_eps=nan is no number above 0"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings='false' is neither true nor false"),
        ({"rope_scaling": "linear"}, "makes no sense: 'str' object has no attribute 'get'"),
        ({"rope_scaling": {"rope_type": ["linear"]}}, r"rope_type=\['linear'\] is unknown"),
        ({"architectures": None}, "is of the architecture None"),
    ],
)
def test_a_model_that_cannot_be_run_is_refused(tmp_path, given, message):
    """A field that would need another model is named, and not passed over."""
    with pytest.raises(RunnerError, match=message):
        load_model(write_folder(tmp_path, "tiny", **given))


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors"])
def test_a_missing_file_is_named(tmp_path, missing):
    """A folder without one of its files says which."""
    folder = write_folder(tmp_path, "tiny")
    (tmp_path / missing).unlink()
    with pytest.raises(RunnerError, match=f"{missing} is missing"):
        load_model(folder)


def test_a_file_that_is_cut_off_is_named(tmp_path):
    """A file of weights that ends too early is no model."""
    folder = write_folder(tmp_path, "tiny")
    whole = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(whole[:-100])
    with pytest.raises(RunnerError, match=r"model\.safetensors cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_folder_in_the_place_of_a_file_is_refused(tmp_path, name):
    """What cannot be read is named, whatever it is."""
    folder = write_folder(tmp_path, "tiny")
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(RunnerError, match=f"{name} cannot be read"):
        load_model(folder)


@pytest.mark.parametrize("weight_map", [["a"], {"a": 3}, {}, None])
def test_an_index_that_names_no_files_is_refused(tmp_path, weight_map):
    """An index says which file of the folder holds what."""
    folder = write_folder(tmp_path, "tiny")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(RunnerError, match="no weight_map that says which file holds what"):
        load_model(folder)


@pytest.mark.parametrize("name", ["../model.safetensors", "/model.safetensors", "a/b", "..", ""])
def test_an_index_that_leads_out_of_its_folder_is_refused(tmp_path, name):
    """A file that an index names elsewhere is told by that name."""
    folder = write_folder(tmp_path, "tiny")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(RunnerError, match=f"names '{name}', which is no file of its own folder"):
        load_model(folder)


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (float("nan"), "the weights hold NaN: model.layers.1.mlp.up_proj.weight"),
        (float("inf"), "the weights hold what torch.float32 has no number for: model.layers.1"),
    ],
)
def test_weights_that_are_no_numbers_are_refused(tmp_path, number, message):
    """One NaN makes all rows NaN, which is no fault of the runner; its tensor is named."""
    folder = write_folder(tmp_path, "tiny")
    tensors = make_tensors(TINY_MODELS["tiny"])
    tensors["model.layers.1.mlp.up_proj.weight"][3, 4] = number
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(RunnerError, match=message):
        load_model(folder)


def test_weights_without_their_scale_are_refused(tmp_path):
    """Whole numbers are quantised weights, and how is not known."""
    folder = write_folder(tmp_path, "tiny")
    tensors = make_tensors(TINY_MODELS["tiny"])
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    safetensors.save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(RunnerError, match=r"lm_head.weight is of the type torch\.int8"):
        load_model(folder)


def test_a_name_of_nothing_is_refused():
    """What is neither a folder nor a file nor a tiny model is told what there is."""
    with pytest.raises(RunnerError, match="no folder, no file and no tiny model; the latter are"):
        load_model("no-such-model")


def test_a_tiny_model_is_always_the_same():
    """A tiny model has the weights of one seed."""
    config, weights = load_model("tiny")
    assert num_differing(make_weights(config, 0), weights) == 0


# ---- GGUF ----------------------------------------------------------------------------------------


def permute(tensor, num_heads):
    """What llama.cpp does to the queries and keys of a Llama."""
    halves = tensor.view(num_heads, 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def get_num_interleaved(config, name):
    """How many heads of a tensor llama.cpp interleaves; 0 if it leaves it alone."""
    counts = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    return next((count for part, count in counts.items() if part in name), 0)


def write_gguf(path, name, quantise=None, **given):
    """Writes a model as llama.cpp keeps it, by the names of the package; returns where."""
    config = TINY_MODELS[name]
    kind = {"LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
    arch = kind[ARCHITECTURES[name]]
    writer = gguf.GGUFWriter(path, given.get("arch", arch))
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if "scaling" in given:
        writer.add_rope_scaling_type(given["scaling"])
        writer.add_rope_scaling_factor(2.0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch.upper()], config.num_hidden_layers)
    for key, tensor in make_tensors(config).items():
        stem, _, suffix = key.rpartition(".")
        num_heads = get_num_interleaved(config, key) if arch == "llama" else 0
        stored = (permute(tensor, num_heads) if num_heads else tensor).numpy()
        dtype = None
        if quantise is not None and tensor.dim() == 2:
            stored, dtype = gguf.quantize(stored, quantise), quantise
        writer.add_tensor(f"{names.get_name(stem)}.{suffix}", stored, raw_dtype=dtype)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


GGUF_MODELS = [name for name in TINY_MODELS if name != "tiny-llama3"]


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_a_gguf_file_is_loaded(tmp_path, name):
    """Config and weights of a GGUF file are those that were written, queries and keys in order."""
    config, weights = load_model(write_gguf(tmp_path / "model.gguf", name))
    eps = TINY_MODELS[name].rms_norm_eps
    assert TINY_MODELS[name] == attrs.evolve(config, rms_norm_eps=eps)
    assert config.rms_norm_eps == pytest.approx(eps)
    assert num_differing(make_weights(config), weights) == 0


@pytest.mark.parametrize(("quantise", "tolerance"), [("F16", 1e-2), ("BF16", 2e-2), ("Q8_0", 3e-2)])
def test_a_quantised_file_is_widened(tmp_path, quantise, tolerance):
    """Weights of fewer bits come close to those that were written, and are not the same."""
    kind = gguf.GGMLQuantizationType[quantise]
    config, weights = load_model(write_gguf(tmp_path / "model.gguf", "tiny", kind))
    expected = make_weights(config)
    assert num_differing(expected, weights, tolerance) == 0
    assert num_differing(expected, weights) > 0


def test_slowed_angles_are_read(tmp_path):
    """A file that scales its positions linearly says by how much."""
    path = write_gguf(tmp_path / "a.gguf", "tiny", scaling=gguf.RopeScalingType.LINEAR)
    config, _ = load_model(path)
    assert ("linear", 2.0) == (config.rope_scaling.kind, config.rope_scaling.factor)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"arch": "gpt2"}, "is of the architecture gpt2"),
        ({"scaling": gguf.RopeScalingType.YARN}, "rope.scaling.type='yarn'"),
    ],
)
def test_a_gguf_file_that_cannot_be_run_is_refused(tmp_path, given, message):
    """What this runner does not have is named."""
    with pytest.raises(RunnerError, match=message):
        load_model(write_gguf(tmp_path / "model.gguf", "tiny", **given))


def test_another_file_is_refused(tmp_path):
    """A file that is no GGUF file is no model."""
    (tmp_path / "model.gguf").write_text("this is a text, and it is long enough to be one")
    with pytest.raises(RunnerError, match="is no GGUF file, which begins with these four letters"):
        load_model(str(tmp_path / "model.gguf"))


def test_a_gguf_file_of_another_version_is_refused(tmp_path):
    """A version that the package does not read is told by its number."""
    path = Path(write_gguf(tmp_path / "model.gguf", "tiny"))
    path.write_bytes(b"GGUF\x09\0\0\0" + path.read_bytes()[8:])
    with pytest.raises(RunnerError, match="has version 9 of GGUF; this runner reads 2 and 3"):
        load_model(str(path))


@pytest.mark.parametrize("share", [0.00002, 0.001, 0.005, 0.5, 0.99])
def test_a_gguf_file_that_is_cut_off_is_refused(tmp_path, share):
    """Wherever it ends too early, it is no model, and one sentence says so."""
    path = Path(write_gguf(tmp_path / "model.gguf", "tiny"))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    size = f"{path.stat().st_size:,}"
    with pytest.raises(RunnerError) as refused:
        load_model(str(path))
    told = f"{path} ends too early, after {size} bytes, or is broken; fetch it again"
    assert told == str(refused.value)


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_names_are_translated_back(name):
    """Every tensor of a model has a name there that leads back to its own."""
    config = TINY_MODELS[name]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, config.num_hidden_layers)
    for key in compute_shapes(config):
        stem, _, suffix = key.rpartition(".")
        assert key == translate(f"{names.get_name(stem)}.{suffix}")
