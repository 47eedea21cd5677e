"""Many workers, one training: exchanges over Horovod, and what makes each worker's model a replica."""
