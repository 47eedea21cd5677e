// Left empty: Horovod includes this only for GPU kernels, which a CPU build leaves out.
#pragma once
