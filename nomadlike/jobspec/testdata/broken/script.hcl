import torch
print(1)
