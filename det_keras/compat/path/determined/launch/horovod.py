"""`python3 -m determined.launch.horovod`, provided by det_keras."""

import sys

from det_keras.launch.distributed import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
