"""Train the adapter."""

from bench.nano.adapter.train import main

if __name__ == "__main__":
    main()
