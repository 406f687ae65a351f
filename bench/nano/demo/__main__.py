"""Write the README images."""

from bench.nano.demo.stills import write_stills

if __name__ == "__main__":
    write_stills()
