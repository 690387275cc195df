import sys

from sb3_grpo.zoo.cli import main

if __name__ == "__main__":
    sys.exit(main())
