"""moto's S3 server as a process of its own; lines of JSON on standard input fill buckets.

Filling goes past HTTP because a test of ten thousand objects must not take a minute to set up.
"""

import json
import logging
import sys


def main() -> None:
    """Serve until standard input ends."""
    from moto.s3.models import s3_backends
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    print(server.get_host_and_port()[1], flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        backend = s3_backends["123456789012"]["aws"]
        for name in order["names"]:
            backend.put_object(order["bucket"], name, order["data"].encode())
        print("done", flush=True)
    server.stop()


if __name__ == "__main__":
    main()
