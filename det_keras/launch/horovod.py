"""The launcher under the name that scripts of the original use: `python3 -m det_keras.launch.horovod`."""

import sys

from det_keras.launch.distributed import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
