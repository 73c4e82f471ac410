"""A model runner with a paged KV cache, for whatever a scheduler decides. Needs torch.

Entry point: `impl.runner.model_runner.ModelRunner`.
"""
