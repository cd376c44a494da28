"""Safe reading and writing of files: checkpoints, checksums, locks, images and texts of strangers.

Nothing is imported here: the command and the processes that decode images need single modules without torch.
"""
