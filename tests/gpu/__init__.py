"""What CUDA changes: `make test-gpu` runs these tests, and all that are marked `gpu` or `device`, on a GPU.

The tests are functions of a device. Without a GPU they run on the CPU, with `make test-slow`.
"""
