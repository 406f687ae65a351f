"""Run the evaluation."""

from bench.nano.evaluation.evaluate import main

if __name__ == "__main__":
    main()
