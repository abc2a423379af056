"""A cluster on this machine until standard input ends; prints its address and its workers' pids."""

import json
import sys

from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        pids = [worker.pid for worker in cluster.workers.values()]
        print(json.dumps({"address": cluster.scheduler_address, "pids": pids}), flush=True)
        sys.stdin.read()
