"""A program on the GPU through the driver's API alone: ctypes on libcuda.so.1, and kernels as PTX text.

Each run is a process of its own, since an error in a kernel ends the context with all that it has. It writes a line of
JSON for each thing that it has done, with the time, and goes on with the next:

    python -m hardware.cuda read-out-of-bounds       # XID 31: the MMU finds no page
    python -m hardware.cuda trap                     # XID 13: the kernel traps
    python -m hardware.cuda context                  # a context that computes nothing, until the standard input ends
    python -m hardware.cuda compute                  # kernels, one after the other
    python -m hardware.cuda memory                   # 512 MiB and nothing else
    python -m hardware.cuda limits                   # as much memory as it gets (MPS), 64 MiB at a time, then kernels

Exit status: 0 done, 3 without a driver for CUDA, 4 when the driver refuses a call that should work.
"""

from __future__ import annotations

import ctypes
import json
import select
import sys
import time
from typing import Any

LIBRARY = "libcuda.so.1"
NO_DRIVER, REFUSED = 3, 4
UNMAPPED = 1 << 40  # no program has anything there
MEBIBYTE = 1 << 20
HELD = 512 * MEBIBYTE
STEP = 64 * MEBIBYTE
LOOPS = 10_000_000  # of one thread: some 0.1 s
MOST_SECONDS = 60.0  # whatever the standard input does
MULTIPROCESSORS = 16  # CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
INVALID_PTX, UNSUPPORTED_PTX = 218, 222
# The oldest form that has what is needed, and a newer one where a driver takes the oldest no more.
FORMS = ((".version 6.0", ".target sm_50"), (".version 7.0", ".target sm_80"), (".version 8.0", ".target sm_90"))
KERNELS = """
.address_size 64

.visible .entry read_address(.param .u64 address, .param .u32 loops)
{
    .reg .b64 place;
    .reg .b32 value;
    ld.param.u64 place, [address];
    ld.volatile.global.u32 value, [place];
    st.volatile.global.u32 [place], value;
    ret;
}

.visible .entry do_trap(.param .u64 address, .param .u32 loops)
{
    trap;
    ret;
}

.visible .entry compute(.param .u64 address, .param .u32 loops)
{
    .reg .pred more;
    .reg .b64 place;
    .reg .b32 count, last, value;
    ld.param.u64 place, [address];
    ld.param.u32 last, [loops];
    mov.u32 count, 0;
    mov.u32 value, 1;
again:
    mad.lo.s32 value, value, 1664525, 1013904223;
    add.u32 count, count, 1;
    setp.lt.u32 more, count, last;
    @more bra again;
    st.global.u32 [place], value;
    ret;
}
"""


class CudaError(Exception):
    """A call that the driver refused. `code` is a CUresult."""

    def __init__(self, call: str, code: int, name: str) -> None:
        self.code = code
        super().__init__(f"{call}: {code} {name}")


class Driver:
    """libcuda.so.1 with the calls that are made here. OSError: it is not there."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(LIBRARY)
        self._library.cuLaunchKernel.argtypes = [
            ctypes.c_void_p,
            *[ctypes.c_uint] * 7,
            *[ctypes.c_void_p] * 3,
        ]

    def try_call(self, name: str, *arguments: Any) -> int:
        """Return the CUresult."""
        return int(getattr(self._library, name)(*arguments))

    def call(self, name: str, *arguments: Any) -> None:
        """Raise CudaError for any CUresult but 0."""
        if code := self.try_call(name, *arguments):
            raise CudaError(name, code, self.name_of(code))

    def name_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text))
        return (text.value or b"unknown").decode(errors="replace")


class Context:
    """The primary context of the first GPU that CUDA_VISIBLE_DEVICES leaves."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.device = ctypes.c_int()
        self._context = ctypes.c_void_p()
        self._module = ctypes.c_void_p()
        driver.call("cuInit", ctypes.c_uint(0))
        driver.call("cuDeviceGet", ctypes.byref(self.device), ctypes.c_int(0))
        driver.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self.device)
        driver.call("cuCtxSetCurrent", self._context)

    def multiprocessors(self) -> int:
        """Return how many the context has; under MPS the part that its limit leaves."""
        found = ctypes.c_int()
        self.driver.call("cuDeviceGetAttribute", ctypes.byref(found), ctypes.c_int(MULTIPROCESSORS), self.device)
        return found.value

    def allocate(self, count: int) -> int:
        """Return the address of so many bytes. Raises CudaError."""
        address = ctypes.c_uint64()
        self.driver.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(count))
        return address.value

    def kernel(self, name: str) -> ctypes.c_void_p:
        function = ctypes.c_void_p()
        if not self._module:
            self._load()
        self.driver.call("cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        return function

    def _load(self) -> None:
        codes = []
        for version, target in FORMS:
            text = f"{version}\n{target}\n{KERNELS}".encode() + b"\0"
            code = self.driver.try_call("cuModuleLoadData", ctypes.byref(self._module), text)
            if not code:
                return
            codes.append(code)
            if code not in {INVALID_PTX, UNSUPPORTED_PTX}:
                break
        raise CudaError("cuModuleLoadData", codes[0], self.driver.name_of(codes[0]))

    def launch(self, function: ctypes.c_void_p, address: int, loops: int = 0) -> None:
        """Start one thread of it."""
        values = (ctypes.c_uint64(address), ctypes.c_uint32(loops))
        pointers = (ctypes.c_void_p * 2)(*(ctypes.addressof(value) for value in values))
        self.driver.call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, None, pointers, None)

    def synchronize(self) -> int:
        """Return the CUresult of what was launched."""
        return self.driver.try_call("cuCtxSynchronize")


def say(what: str, **more: object) -> None:
    print(json.dumps({"what": what, "time": time.time(), **more}), flush=True)


def fail(context: Context, kernel: str) -> None:
    """Run a kernel that fails, and tell what the driver answers."""
    function = context.kernel(kernel)
    say("launching")
    context.launch(function, UNMAPPED)
    code = context.synchronize()
    say("answered", code=code, name=context.driver.name_of(code) if code else "CUDA_SUCCESS")


def compute(context: Context) -> None:
    """Run kernels until the standard input ends."""
    _compute(context, context.allocate(4), context.kernel("compute"))


def _compute(context: Context, place: int, function: ctypes.c_void_p) -> None:
    say("ready")
    count, until = 0, time.monotonic() + MOST_SECONDS
    while time.monotonic() < until and not _input_ended(0.0):
        context.launch(function, place, LOOPS)
        if code := context.synchronize():
            raise CudaError("cuCtxSynchronize", code, context.driver.name_of(code))
        count += 1
    say("computed", kernels=count)


def limits(context: Context) -> None:
    """Take all memory that there is for it, up to 64 steps, and then compute."""
    place, function = context.allocate(4), context.kernel("compute")  # before there is no more
    taken, refused = 0, ""
    for _ in range(64):
        try:
            context.allocate(STEP)
        except CudaError as error:
            refused = str(error)
            break
        taken += STEP
    say("memory", taken_mib=taken // MEBIBYTE, refused=refused, multiprocessors=context.multiprocessors())
    _compute(context, place, function)


def wait(context: Context, held: int = 0) -> None:
    """Hold the context, with so many bytes, until the standard input ends."""
    if held:
        context.allocate(held)
    say("ready")
    _input_ended(MOST_SECONDS)


def _input_ended(seconds: float) -> bool:
    readable, _, _ = select.select([sys.stdin], [], [], seconds)
    return bool(readable) and not sys.stdin.readline()


ACTIONS = {
    "read-out-of-bounds": lambda context: fail(context, "read_address"),
    "trap": lambda context: fail(context, "do_trap"),
    "context": wait,
    "compute": compute,
    "memory": lambda context: wait(context, HELD),
    "limits": limits,
}


def main() -> int:
    try:
        driver = Driver()
    except OSError as error:
        say("failed", why=str(error))
        return NO_DRIVER
    try:
        context = Context(driver)
        say("context")
        ACTIONS[sys.argv[1]](context)
    except CudaError as error:
        say("failed", why=str(error))
        return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main())
