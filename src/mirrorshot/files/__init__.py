"""Safe reading and writing of files: checkpoints, locks, and images and texts of unknown origin.

Nothing is imported here: the command and the processes that decode images need single modules without torch.
"""
