"""The Python side of store_torch.rs. The first argument is the role:

- "libuv": hosts PyTorch's TCPStore with libuv, and runs `converse`
- "legacy": hosts PyTorch's TCPStore without libuv, and runs `converse`
- "client PORT": connects PyTorch's TCPStore to a host, and runs `converse`
- "file PATH": opens PyTorch's FileStore, and runs `converse`
- "serve": hosts PyTorch's TCPStore, and makes no requests
- "wire PORT...": makes each kind of request to the host at each port

Hosts print their port first. Every role prints "agreed" after its work, and then waits for the end of its input."""

import sys
from datetime import timedelta

from torch.distributed import FileStore, TCPStore

MINUTE = timedelta(seconds=60)


def converse(store, queues):
    store.set("py/hello", "from python")
    assert store.get("rs/hello") == b"from rust"

    store.add("count", 5)
    store.set("py/counted", "")
    store.wait(["rs/counted"], MINUTE)
    assert store.add("count", 0) == 42
    assert store.get("count") == b"42"

    store.set("py/vote", store.compare_set("vote", "", "python"))
    assert store.get("rs/vote") == store.get("py/vote")

    store.append("py/log", "first ")
    store.append("py/log", "second")
    store.multi_set(["py/a", "py/b"], ["1", "2"])
    assert store.multi_get(["rs/a", "rs/b"]) == [b"1", b"2"]

    assert not store.check(["never"])
    try:
        store.wait(["never"], timedelta(milliseconds=50))
        raise AssertionError("nobody sets this key")
    except RuntimeError as error:  # a DistStoreError is one
        assert "imeout" in str(error), error

    store.set("py/gone", "")
    assert store.delete_key("py/gone")
    # PyTorch's FileStore also returns True if the key is absent.
    assert store.delete_key("py/gone") == isinstance(store, FileStore)
    large = bytes(8 << 20)
    store.set("py/large", large)
    assert store.get("rs/large") == large

    if queues:
        store.queue_push("to rust", "ping")
        assert store.queue_pop("to python") == b"pong"
        assert store.queue_len("to python") == 0
        assert "py/hello" in store.list_keys()

    store.set("py/done", "")
    store.wait(["rs/done"], MINUTE)


def every_request(store):
    store.set("k", "abc")
    store.list_keys()
    store.get("k")
    store.add("n", -5)
    store.compare_set("c", "", "x")
    store.compare_set("c", "q", "y")
    store.check(["k", "no"])
    store.wait(["k", "n"], MINUTE)
    store.num_keys()
    store.delete_key("c")
    store.append("k", "d")
    store.multi_set(["m", "l"], ["1", "22"])
    store.multi_get(["k", "m"])
    store.queue_push("q", "v")
    store.queue_len("q")
    store.queue_pop("q")
    store.barrier("b", 1, MINUTE)
    try:
        store.wait(["never"], timedelta(milliseconds=50))
        raise AssertionError("nobody sets this key")
    except RuntimeError:
        pass
    store.delete_key("k")


role = sys.argv[1]
if role == "wire":
    for port in sys.argv[2:]:
        every_request(TCPStore("127.0.0.1", int(port), is_master=False, timeout=MINUTE))
elif role == "client":
    # With a world size, the client counts itself in the store, and the host waits for that.
    store = TCPStore("127.0.0.1", int(sys.argv[2]), world_size=2, is_master=False, timeout=MINUTE)
elif role == "file":
    store = FileStore(sys.argv[2], 2)
    store.set_timeout(MINUTE)
else:
    store = TCPStore("127.0.0.1", 0, is_master=True, timeout=MINUTE, use_libuv=role != "legacy")
    print(store.port, flush=True)
if role not in ("wire", "serve"):
    converse(store, queues=role in ("client", "libuv"))
print("agreed", flush=True)
# A host must not end before the test has read its last replies. After that, the test closes this input.
sys.stdin.read()
