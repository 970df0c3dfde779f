"""One thread per process: the suite runs several at a time, and threads that wait for each other spin."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
