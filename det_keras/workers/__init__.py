"""The wire between the processes of one job: ranks, and the launchers that start them.

`channel` is a connection between two ends that know the job's key. Over it run the exchange of small objects
(`exchange`) and what launchers tell each other. `collective` adds up arrays in the memory that ranks of a machine
inherit (`inherited`), `heartbeat` finds ranks that hang, and `rendezvous` is where Horovod's processes find each other.
"""
