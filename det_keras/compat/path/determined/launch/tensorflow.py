"""`python3 -m determined.launch.tensorflow`, provided by det_keras."""

import sys

from det_keras.launch.tensorflow import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
