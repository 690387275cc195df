import torch as th

# Tiny networks: more threads only get into each other's way
th.set_num_threads(1)
