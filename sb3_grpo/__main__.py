import sys

from sb3_grpo.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
