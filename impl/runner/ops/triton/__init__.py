"""The backend for CUDA, in Triton; on a CPU the same kernels run under Triton's interpreter.

Entry point: `impl.runner.ops.triton.backend.TritonOps`.
"""
