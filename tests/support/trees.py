"""Trees of /sys, /proc and /dev as kernels show machines that we do not have, built below a folder.

They follow the kernel's sources and documentation, and are no copy of a machine. Paths are relative to the root, links
as the kernel makes them: a device's folder stands in /sys/devices, and everything else points to it.
"""

# A tree has thousands of files, and pathlib takes ten times as long for each.
# ruff: noqa: PTH103, PTH105, PTH114, PTH120, PTH211

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Tree:
    root: Path

    def file(self, path: str, content: str | int = "") -> None:
        target = f"{self.root}/{path}"
        if os.path.islink(target):
            target = os.path.realpath(target)
        try:
            self._put(target, f"{content}\n")
        except FileNotFoundError:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            self._put(target, f"{content}\n")

    def _put(self, target: str, content: str) -> None:
        new = f"{self.root}/.new"  # as in sysfs, nobody reads half of a change
        place = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.write(place, content.encode())
        os.close(place)
        os.replace(new, target)

    def files(self, folder: str, **contents: str | int) -> None:
        for name, content in contents.items():
            self.file(f"{folder}/{name}", content)

    def link(self, path: str, target: str) -> None:
        """`target`: a path below the root; the link is a relative one, as in sysfs."""
        place, up = f"{self.root}/{path}", "../" * path.count("/")
        try:
            os.symlink(f"{up}{target}", place)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(place), exist_ok=True)
            os.symlink(f"{up}{target}", place)

    def pci(self, bus_id: str, *, behind: str, driver: str = "", numa_node: int = -1, **files: str | int) -> str:
        """A PCI device; `behind`: its root complex and bridges, `pci0000:16/0000:16:01.0`. Returns its folder."""
        folder = f"sys/devices/{behind}/{bus_id}"
        self.files(folder, numa_node=numa_node, **files)
        self.link(f"sys/bus/pci/devices/{bus_id}", folder)
        if driver:
            (self.root / "sys/bus/pci/drivers" / driver).mkdir(parents=True, exist_ok=True)
            self.link(f"{folder}/driver", f"sys/bus/pci/drivers/{driver}")
        return folder

    def node(self, path: str) -> None:
        """What stands for a device node below a root that is not the real one."""
        self.file(path.lstrip("/"))


# --- AMD ----------------------------------------------------------------------------------------------------------
MI300X_MIB = 196_592
PARTITIONS = {"SPX": 1, "DPX": 2, "QPX": 4, "CPX": 8}


def amd_bus_id(gpu: int) -> str:
    return f"0000:{0x0C + gpu:02x}:00.0"


def mi300x(root: Path, *, gpus: int = 8, compute: str = "SPX", memory: str = "NPS1") -> Tree:
    """A machine with so many MI300X, all linked by XGMI, four at each of two CPUs."""
    tree, parts = Tree(root), PARTITIONS[compute]
    tree.file("sys/module/amdgpu/version", "6.12.12")
    tree.node("/dev/kfd")
    for cpu in (0, 1):
        tree.file(
            f"sys/class/kfd/kfd/topology/nodes/{cpu}/properties", "cpu_cores_count 96\nsimd_count 0\nlocation_id 0"
        )
    for gpu in range(gpus):
        _mi300x(tree, gpu, compute=compute, memory=memory, gpus=gpus, parts=parts)
    return tree


def _mi300x(tree: Tree, gpu: int, *, compute: str, memory: str, gpus: int, parts: int) -> None:
    bus_id, numa_node, first_minor = amd_bus_id(gpu), gpu // 4, gpu * 8
    folder = tree.pci(
        bus_id,
        behind=f"pci0000:{0x0A + gpu:02x}/0000:{0x0A + gpu:02x}:01.0",
        driver="amdgpu",
        numa_node=numa_node,
        vendor="0x1002",
        device="0x74a1",
        product_name="AMD Instinct MI300X OAM",
        unique_id=f"{0xC0FFEE00 + gpu:016x}",
        vbios_version="113-M3000100-103",
        mem_info_vram_total=MI300X_MIB << 20,
        mem_info_vram_used=1 << 30,
        gpu_busy_percent=7,
        current_compute_partition=compute,
        available_compute_partition="SPX, DPX, QPX, CPX",
        current_memory_partition=memory,
        available_memory_partition="NPS1, NPS4",
    )
    tree.file(f"{folder}/class", "0x120000")
    tree.files(f"{folder}/ras", umc_err_count="ue: 0\nce: 3", gfx_err_count="ue: 0\nce: 0", gpu_vram_bad_pages="")
    sensors: dict[str, str | int] = {"temp1_label": "edge", "temp1_input": 41_000, "temp1_crit": 100_000}
    tree.files(f"{folder}/hwmon/hwmon{gpu}", **sensors, temp2_label="junction", temp2_input=52_000, temp2_crit=105_000)
    tree.files(
        f"{folder}/hwmon/hwmon{gpu}", power1_average=137_000_000, freq1_input=132_000_000, freq2_input=900_000_000
    )
    tree.link(f"sys/module/amdgpu/drivers/pci:amdgpu/{bus_id}", folder)
    for part in range(parts):
        minor = first_minor + part
        drm = f"{folder}/drm" if part == 0 else f"sys/devices/platform/amdgpu_xcp_{gpu * (parts - 1) + part - 1}/drm"
        for name in (f"card{minor}", f"renderD{128 + minor}"):
            tree.file(f"{drm}/{name}/dev", f"226:{minor}")
            tree.node(f"/dev/dri/{name}")
        _kfd(tree, gpu, part, gpus=gpus, parts=parts)


def _kfd(tree: Tree, gpu: int, part: int, *, gpus: int, parts: int) -> None:
    number = 2 + gpu * parts + part
    node, bus = f"sys/class/kfd/kfd/topology/nodes/{number}", 0x0C + gpu
    properties = {
        "cpu_cores_count": 0,
        "simd_count": 1216 // parts,
        "simd_per_cu": 4,
        "gfx_target_version": 90402,
        "vendor_id": 4098,
        "device_id": 0x74A1,
        "location_id": bus << 8 | part << 28,
        "domain": 0,
        "drm_render_minor": 128 + gpu * 8 + part,
        "unique_id": (1 << 63) + gpu,
        "local_mem_size": 0,
    }
    tree.file(f"{node}/properties", "\n".join(f"{name} {value}" for name, value in properties.items()))
    tree.file(f"{node}/mem_banks/0/properties", f"heap_type 1\nsize_in_bytes {(MI300X_MIB << 20) // parts}")
    others = [2 + other * parts + it for other in range(gpus) for it in range(parts) if other != gpu]
    for index, other in enumerate([0, *others]):
        kind = 2 if other == 0 else 11
        link = f"type {kind}\nnode_from {number}\nnode_to {other}\nweight {20 if kind == 2 else 15}"
        tree.file(f"{node}/io_links/{index}/properties", link)


# --- Intel -----------------------------------------------------------------------------------------------------------
FLEX_170, MAX_1550 = "0x56c0", "0x0bd5"
FLEX_MIB = 14_248


def intel_bus_id(gpu: int, function: int = 0) -> str:
    return f"0000:{0x4D + gpu:02x}:00.{function}"


def flex(
    root: Path, *, gpus: int = 2, functions: int = 0, driver: str = "i915", device: str = FLEX_170, first_minor: int = 0
) -> Tree:
    """A machine with so many Data Center GPUs, the first one cut into so many virtual functions."""
    tree = Tree(root)
    tree.file(f"sys/module/{driver}/refcnt", 1)
    tree.file("proc/sys/kernel/osrelease", "6.8.0-45-generic")
    minor = first_minor
    for gpu in range(gpus):
        count = functions if gpu == 0 else 0
        for function in range(count + 1):
            folder = _intel(tree, gpu, function, driver=driver, device=device, minor=minor)
            tree.file(f"{folder}/sriov_numvfs", 0 if function else count)
            if function:
                tree.link(f"{folder}/physfn", f"sys/bus/pci/devices/{intel_bus_id(gpu)}")
            minor += 1
    return tree


def _intel(tree: Tree, gpu: int, function: int, *, driver: str, device: str, minor: int) -> str:
    bus_id = intel_bus_id(gpu, function)
    behind = f"pci0000:4a/0000:4a:02.0/0000:4b:00.0/0000:4c:{gpu:02x}.0"
    folder = tree.pci(bus_id, behind=behind, driver=driver, numa_node=0, vendor="0x8086", device=device)
    tree.file(f"{folder}/class", "0x038000")
    for name in (f"card{minor}", f"renderD{128 + minor}"):
        tree.file(f"{folder}/drm/{name}/dev", f"226:{minor}")
        tree.node(f"/dev/dri/{name}")
    if driver == "xe":
        tree.file(f"{folder}/tile0/physical_vram_size_bytes", hex(FLEX_MIB << 20))
    else:
        tree.file(f"{folder}/drm/card{minor}/lmem_total_bytes", FLEX_MIB << 20)
    tree.files(f"{folder}/hwmon/hwmon{minor}", temp1_input=48_000, temp1_crit=100_000, power1_input=75_000_000)
    tree.link(f"sys/bus/pci/drivers/{driver}/{bus_id}", folder)
    return folder


# --- whatever has a node in /dev, and USB ----------------------------------------------------------------------------
def char_device(tree: Tree, path: str, *, like: str = "/dev/null", behind: str = "") -> None:
    """A node that is a real character device, without a right to make one: a link to `like`. `behind`: the PCI address
    of its hardware, by /sys/dev/char."""
    place = tree.root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(like)
    if behind:
        number = Path(like).stat().st_rdev
        folder = tree.root / "sys/dev/char"
        folder.mkdir(parents=True, exist_ok=True)
        link = folder / f"{os.major(number)}:{os.minor(number)}"
        link.symlink_to(f"../../devices/pci0000:00/{behind}/x/{place.name}")


def usb(
    tree: Tree, port: str, *, ids: str, number: int, serial: str = "", tty: str = "", controller: str = "0000:00:14.0"
) -> None:
    """A USB device; `ids`: 1a86:7523; `tty`: the one that the driver of its first interface made."""
    bus = int(port.partition("-")[0])
    vendor, product = ids.split(":")
    folder = f"sys/devices/pci0000:00/{controller}/usb{bus}/{port}"
    tree.files(folder, idVendor=vendor, idProduct=product, busnum=bus, devnum=number)
    tree.files(folder, manufacturer="QinHeng", product="USB Serial", uevent="DEVTYPE=usb_device")
    if serial:
        tree.file(f"{folder}/serial", serial)
    tree.link(f"sys/bus/usb/devices/{port}", folder)
    tree.file(f"{folder}/{port}:1.0/bInterfaceNumber", "00")
    tree.node(f"/dev/bus/usb/{bus:03}/{number:03}")
    if tty:
        made = f"{folder}/{port}:1.0/{tty}/tty/{tty}"
        tree.file(f"{made}/uevent", f"MAJOR=188\nMINOR=0\nDEVNAME={tty}")
        tree.link(f"{made}/subsystem", "sys/class/tty")
        tree.node(f"/dev/{tty}")
