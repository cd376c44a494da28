"""Safe reading and writing of files: checkpoints, locks, and images and texts of unknown origin.

Nothing is imported here, because the command line and the image workers need single modules without torch.
"""
