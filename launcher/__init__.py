"""``bpslaunch``: starts the processes of a job on this machine, watches over them, and ends them together.

::

    main       the entry point: which of the three uses is meant, and what a usage error looks like
    arguments  the command line: our options end where the command begins
    local      without DMLC_ROLE: the whole job on this machine, planned as plain values, then run
    role       with DMLC_ROLE: one role of a job that spans machines
    launch     what both have planned is run, or shown by a dry run
    ports      ports of this machine, held for the processes of a job
    affinity   cores and devices of this machine, and the OpenMP environment that follows
    ending     pure: who ended how -> who is to be signalled, and the exit status
    output     lines of many processes on one terminal
    processes  one process, in a process group of its own
    guard      a small process that ends those groups if the launcher itself is killed
    supervisor the loop that ties the last four together

Nothing here imports more of byteps_py than the entry, errors, the role, settings, claims of ports and what these need,
so no NumPy and no zmq: the launcher must start fast and hold little.
"""
