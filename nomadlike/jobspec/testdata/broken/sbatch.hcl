#!/bin/bash
#SBATCH --job-name=x
#SBATCH --gres=gpu:2
srun python train.py
