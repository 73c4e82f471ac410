"""Stands for the package vllm: our scheduler behind what the adapter calls, sums for a model."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

from impl.scheduler import FastScheduler
from spec.interface import ModelRunnerOutput, NewRequest, SchedulerConfig

NUM_WORDS = 97
UNKNOWN = ("model", "dtype", "seed", "skip_tokenizer_init", "enforce_eager")


class SamplingParams:
    """Keeps what it is given."""

    def __init__(self, **given):
        vars(self).update(given)


class Scheduler:
    """Plans as ours does, and tells it in vLLM's form."""

    def __init__(self, config):
        self.ours = FastScheduler(config)
        self.planned = None
        self.num_blocks = config.num_blocks

    @property
    def requests(self):
        """What vLLM keeps of each request, by its name."""
        return self.ours.observe().requests

    def schedule(self):
        """Plans a step."""
        self.planned = output = self.ours.schedule()
        cached = output.scheduled_cached_reqs
        return SimpleNamespace(
            num_scheduled_tokens=output.num_scheduled_tokens,
            total_num_scheduled_tokens=sum(output.num_scheduled_tokens.values()),
            scheduled_new_reqs=[
                SimpleNamespace(req_id=name, num_computed_tokens=new.num_computed_tokens)
                for name, new in output.scheduled_new_reqs.items()
            ],
            scheduled_cached_reqs=SimpleNamespace(
                req_ids=list(cached),
                num_computed_tokens=[each.num_computed_tokens for each in cached.values()],
                resumed_req_ids={name for name, each in cached.items() if each.resumed},
            ),
        )


class LLM:
    """Computes each token from the sum of those before it."""

    noise = 0.0
    """How much log-probabilities depend on the size of a step."""
    slip = 0
    """What is added to a token that is computed beside others."""

    def __init__(self, **settings):
        for name in UNKNOWN:
            del settings[name]
        if settings["block_size"] % 32:
            raise ValueError("No common block size for 16.")
        assert settings.pop("enable_chunked_prefill")
        num_blocks = settings.pop("num_gpu_blocks_override") - 1
        scheduler = Scheduler(SchedulerConfig(**settings, num_blocks=num_blocks))
        self.is_shut_down = False
        core = SimpleNamespace(
            engine_core=SimpleNamespace(scheduler=scheduler), shutdown=self.shut_down
        )
        self.llm_engine = SimpleNamespace(engine_core=core)
        self.num_calls = 0

    def shut_down(self):
        """Ends."""
        self.is_shut_down = True

    def generate(self, prompts, params, *, use_tqdm):
        """Computes all, and returns the answers in the order of the prompts."""
        assert not use_tqdm
        scheduler = self.llm_engine.engine_core.engine_core.scheduler
        self.num_calls += 1
        texts, answers = {}, {}
        for number, (prompt, each) in enumerate(zip(prompts, params, strict=True)):
            assert (0.0, True) == (each.temperature, each.ignore_eos)
            name = f"{self.num_calls}-{number}"
            texts[name], answers[name] = list(prompt["prompt_token_ids"]), []
            scheduler.ours.add_request(
                NewRequest(
                    request_id=name,
                    prompt_token_ids=tuple(texts[name]),
                    max_tokens=each.max_tokens,
                )
            )
        while scheduler.requests:
            step = scheduler.schedule()
            self.run(scheduler, step, texts, answers)
        return [SimpleNamespace(outputs=[self.output(answer)]) for answer in answers.values()]

    def run(self, scheduler, step, texts, answers):
        """Computes a step, and tells the scheduler."""
        sampled = {}
        for name in step.num_scheduled_tokens:
            seen = scheduler.requests[name]
            sampled[name] = []
            if seen.num_computed_tokens == seen.num_tokens:
                logprobs = self.compute(texts[name], len(step.num_scheduled_tokens))
                token_id = max(logprobs, key=logprobs.get)
                sampled[name] = [token_id]
                answers[name].append((token_id, logprobs))
                texts[name].append(token_id)
        scheduler.ours.update_from_output(scheduler.planned, ModelRunnerOutput(sampled))

    def compute(self, token_ids, num_reqs):
        """Five candidates: the greatest is what the tokens say."""
        best = (sum(token_ids) + self.slip * (num_reqs > 1)) % NUM_WORDS
        logprobs = {(best + place) % NUM_WORDS: -1.0 - place for place in range(5)}
        logprobs[best] += self.noise * num_reqs
        return logprobs

    def output(self, answer):
        """One answer in vLLM's form."""
        return SimpleNamespace(
            token_ids=[token_id for token_id, _ in answer],
            logprobs=[
                {name: SimpleNamespace(logprob=value) for name, value in logprobs.items()}
                for _, logprobs in answer
            ],
        )


def install(monkeypatch, device="cpu", **given):
    """Puts it in the place of vllm; `given` changes how its model computes."""
    module, platforms = ModuleType("vllm"), ModuleType("vllm.platforms")
    module.__spec__ = ModuleSpec("vllm", None)
    module.LLM = type("LLM", (LLM,), given)
    module.SamplingParams = SamplingParams
    platforms.current_platform = SimpleNamespace(device_type=device)
    monkeypatch.setitem(sys.modules, "vllm", module)
    monkeypatch.setitem(sys.modules, "vllm.platforms", platforms)
    return module
