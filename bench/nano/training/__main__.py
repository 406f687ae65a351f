"""Run the training."""

from bench.nano.training.train import main

if __name__ == "__main__":
    main()
