"""The meaning of XID numbers: NVIDIA's catalogue as data, and our class for each.

The rows are in the order of NVIDIA's own "immediate action". Each has the number, the driver's mnemonic, its meaning as
text for people, and our class. The class decides the state; the state machine uses nothing else of a number. So who
disagrees (NVIDIA, another vendor's agent, a site's experience) changes one cell here, or adds a rule to a policy's
`health.rules`. A number that is not listed, or that the newest catalogue calls unused, may not be harmless: older
drivers emit some of them, and newer ones add more. It is reported (Degraded) and the device stays in service.

Source column:
  catalog   NVIDIA's XID catalogue (docs.nvidia.com/deploy/xid-errors, "Immediate Action"), as of October 2025
  field     agents in the field differ, or the catalogue names no action: the comment beside the row says which agents
"""

from __future__ import annotations

from types import MappingProxyType

from msgspec import Struct

from nodedevices_plugin.vendors.faults import Effect

MAX_XID = 1023  # no driver has a greater one


class Xid(Struct, frozen=True):
    """One row. `action`: `health.recoveryAction`, unless the driver itself (field 230) reports another one."""

    number: int
    mnemonic: str
    meaning: str
    effect: Effect
    action: str = "None"
    domain: str = "Device"
    source: str = "catalog"
    contained: bool = False  # an event that names a MIG instance concerns that instance alone
    off_bus: bool = False  # the device is gone: an answer proves nothing until it has left and come back


def _application(number: int, mnemonic: str, meaning: str, *, contained: bool = False) -> Xid:
    return Xid(number, mnemonic, meaning, Effect.NOTICE, "RestartApp", "Application", contained=contained)


def _counted(number: int, mnemonic: str, meaning: str) -> Xid:
    return Xid(number, mnemonic, meaning, Effect.COUNTED)


def _reset(number: int, mnemonic: str, meaning: str) -> Xid:
    return Xid(number, mnemonic, meaning, Effect.UNHEALTHY, "ResetDevice")


def _nvlink5(number: int, unit: str) -> Xid:
    # NVML names neither unit nor severity of the message; the drivers that emit these answer field 230, which does.
    mnemonic, meaning = f"NVLINK_{unit}_ERROR", f"NVLink 5 {unit} error"
    return Xid(number, mnemonic, meaning, Effect.UNDECIDED, "Inspect")


def _unclassified(number: int, mnemonic: str, meaning: str) -> Xid:
    return Xid(number, mnemonic, meaning, Effect.DEGRADED, source="field")


_ROWS: tuple[Xid, ...] = (
    # --- RESTART_APP: user code, or an error that the driver kept inside it --------------------------------------
    _application(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "GPU stopped processing"),
    _application(11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "invalid or corrupted push buffer stream"),
    _application(13, "ROBUST_CHANNEL_GR_EXCEPTION", "graphics engine exception"),
    _application(25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "invalid or illegal push buffer stream"),
    _application(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "GPU memory page fault"),
    _application(32, "ROBUST_CHANNEL_PBDMA_ERROR", "invalid or corrupted push buffer stream"),
    _application(39, "ROBUST_CHANNEL_CE0_ERROR", "copy engine 0 exception"),
    _application(40, "ROBUST_CHANNEL_CE1_ERROR", "copy engine 1 exception"),
    _application(41, "ROBUST_CHANNEL_CE2_ERROR", "copy engine 2 exception"),
    _application(60, "ROBUST_CHANNEL_SEC2_ERROR", "video processor exception"),
    _application(68, "ROBUST_CHANNEL_NVDEC0_ERROR", "NVDEC 0 exception"),
    _application(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "graphics engine class error"),
    _application(70, "ROBUST_CHANNEL_CE3_ERROR", "copy engine 3 error"),
    _application(71, "ROBUST_CHANNEL_CE4_ERROR", "copy engine 4 error"),
    _application(72, "ROBUST_CHANNEL_CE5_ERROR", "copy engine 5 error"),
    _application(75, "ROBUST_CHANNEL_CE6_ERROR", "copy engine 6 error"),
    _application(76, "ROBUST_CHANNEL_CE7_ERROR", "copy engine 7 error"),
    _application(77, "ROBUST_CHANNEL_CE8_ERROR", "copy engine 8 error"),
    _application(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "corrupted data sent to the GPU"),
    _application(82, "ROBUST_CHANNEL_NVJPG0_ERROR", "NVJPG 0 error"),
    _application(83, "ROBUST_CHANNEL_NVDEC1_ERROR", "NVDEC 1 error"),
    _application(84, "ROBUST_CHANNEL_NVDEC2_ERROR", "NVDEC 2 error"),
    _application(85, "ROBUST_CHANNEL_CE9_ERROR", "copy engine 9 error"),
    _application(86, "ROBUST_CHANNEL_OFA0_ERROR", "OFA exception"),
    _application(88, "ROBUST_CHANNEL_NVDEC3_ERROR", "NVDEC 3 error"),
    _application(89, "ROBUST_CHANNEL_NVDEC4_ERROR", "NVDEC 4 error"),
    _application(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "contained memory error", contained=True),
    _application(96, "ROBUST_CHANNEL_NVDEC5_ERROR", "NVDEC 5 error"),
    _application(97, "ROBUST_CHANNEL_NVDEC6_ERROR", "NVDEC 6 error"),
    _application(98, "ROBUST_CHANNEL_NVDEC7_ERROR", "NVDEC 7 error"),
    *(_application(98 + n, f"ROBUST_CHANNEL_NVJPG{n}_ERROR", f"NVJPG {n} error") for n in range(1, 8)),  # 99-105
    *(_application(116 + n, f"ROBUST_CHANNEL_CE{n}_ERROR", f"copy engine {n} error") for n in range(10, 20)),  # 126-135
    _application(139, "ROBUST_CHANNEL_OFA1_ERROR", "OFA 1 error"),
    # --- IGNORE ---------------------------------------------------------------------------------------------------
    _counted(37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "driver firmware error"),
    _counted(38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "driver firmware error"),
    # The catalogue requires nothing; its text says that a program hit its own fault and has to end.
    Xid(
        43,
        "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR",
        "GPU stopped processing",
        Effect.NOTICE,
        "RestartApp",
        "Application",
        source="field",
    ),
    _counted(44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "graphics engine fault during context switch"),
    _counted(63, "INFOROM_DRAM_RETIREMENT_EVENT", "GPU memory row remapping recorded"),  # readings show the rest
    _counted(66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "illegal access by the driver"),
    _counted(67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "illegal access by the driver"),
    _counted(92, "EXCESSIVE_SBE_INTERRUPTS", "high single-bit ECC error rate"),
    _counted(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "non-fatal violation of the InfoROM wear limit"),
    _counted(106, "SMBPBI_TEST_MESSAGE", "SMBPBI test message"),
    _counted(107, "SMBPBI_TEST_MESSAGE_SILENT", "SMBPBI test message"),
    _counted(121, "C2C_ERROR", "C2C link error"),
    _counted(137, "NVLINK_PRIV_ERR", "NVLink privilege error"),
    _counted(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "CUDA fast path error"),
    _counted(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "DLA SMMU error"),
    _counted(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "DLA timeout"),
    _counted(157, "RESOURCE_RETIREMENT_FAILURE", "resource retirement failure"),
    _counted(160, "CHANNEL_RETIREMENT_EVENT", "channel retirement"),
    _counted(161, "CHANNEL_RETIREMENT_FAILURE", "channel retirement failure"),
    # "Informational only regarding another Xid": the reading of field 230 says what it has changed to.
    Xid(154, "GPU_RECOVERY_ACTION_CHANGED", "GPU recovery action changed", Effect.COUNTED),
    # --- RESET_GPU ------------------------------------------------------------------------------------------------
    _reset(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "GPU stopped processing"),
    _reset(62, "PMU_HALT_ERROR", "internal micro-controller halt"),
    _reset(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "GPU memory row remapping failed"),
    _reset(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "uncontained memory error"),
    # NVIDIA's device plugin 0.20 ignores 109; its catalogue and EKS's node monitoring agent do not.
    _reset(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "context switch timeout"),
    _reset(110, "SEC_FAULT_ERROR", "security fault"),
    _reset(119, "GSP_RPC_TIMEOUT", "GSP RPC timeout"),
    _reset(120, "GSP_ERROR", "GSP error"),
    _reset(136, "ALI_TRAINING_FAIL", "NVLink training failed"),
    _reset(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "unrecovered ECC error"),
    _reset(143, "GPU_INIT_ERROR", "GPU initialization error"),
    _reset(155, "NVLINK_SW_DEFINED_ERROR", "NVLink error defined by software"),
    _reset(156, "RESOURCE_RETIREMENT_EVENT", "resource retirement"),
    _reset(158, "GPU_FATAL_TIMEOUT", "GPU fatal timeout"),
    # --- RESTART_BM, RESTART_VM: from inside a virtual machine its reboot is the node's --------------------------
    Xid(
        79,
        "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS",
        "GPU has fallen off the bus",
        Effect.UNHEALTHY,
        "RebootNode",
        off_bus=True,
    ),
    Xid(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "key rotation error", Effect.UNHEALTHY, "RebootNode", domain="Node"),
    # --- workflows: what they mean depends on what comes beside them ----------------------------------------------
    # Alone it follows a killed process; the fabric manager is not ours to restart.
    Xid(45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "preemptive cleanup after an earlier error", Effect.UNDECIDED),
    Xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "double bit ECC error", Effect.UNDECIDED, "ResetDevice"),
    Xid(74, "NVLINK_ERROR", "NVLink error", Effect.UNDECIDED, "ResetDevice"),
    _nvlink5(144, "SAW"),
    _nvlink5(145, "RLW"),
    _nvlink5(146, "TLW"),
    _nvlink5(147, "TREX"),
    _nvlink5(148, "NVLPW_CTRL"),
    _nvlink5(149, "NETIR"),
    _nvlink5(150, "MSE"),
    # --- CHECK_MECHANICALS, UPDATE_SWFW, CONTACT_SUPPORT, CHECK_UVM ------------------------------------------------
    Xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "auxiliary power is not connected", Effect.UNHEALTHY, "Inspect"),
    Xid(78, "VGPU_START_ERROR", "vGPU start error", Effect.NOTICE, domain="Application", source="field"),
    # EKS's agent takes 142 for fatal; the catalogue only says to contact support.
    Xid(142, "ROBUST_CHANNEL_NVENC3_ERROR", "NVENC 3 error", Effect.DEGRADED, "Inspect", source="field"),
    Xid(
        159,
        "ROBUST_CHANNEL_CHI_NON_DATA_ERROR",
        "CHI non-data error",
        Effect.NOTICE,
        domain="Application",
        source="field",
    ),
    # --- in the catalogue, but without an action ------------------------------------------------------------------
    _unclassified(162, "PSHC_REENGAGED", "power smoothing re-engaged"),
    _unclassified(163, "PSHC_DISENGAGED", "power smoothing disengaged"),
    _unclassified(164, "PSHC_LOW_LIFETIME", "power smoothing circuitry near the end of its life"),
    _unclassified(165, "PSHC_ZERO_LIFETIME", "power smoothing circuitry at the end of its life"),
    _unclassified(166, "NVLINK_SECURE_CRYPTO_ERR", "confidential traffic before the link was set up for it"),
    _unclassified(167, "PCIE_FATAL_TIMEOUT", "PCIe fatal timeout"),
    _unclassified(168, "REDUCED_GPU_MEMORY_CAPACITY", "reduced GPU memory capacity"),
    _unclassified(169, "SEC2_HALT_ERROR", "internal micro-controller halt"),
    _unclassified(170, "NVLINK_SECURE_OTHER", "interrupt in confidential computing mode"),
    _unclassified(171, "UNCORRECTABLE_DRAM_ERROR", "uncorrectable DRAM error (detail of XID 48)"),
    _unclassified(172, "UNCORRECTABLE_SRAM_ERROR", "uncorrectable SRAM error (detail of XID 48)"),
)

CATALOGUE: MappingProxyType[int, Xid] = MappingProxyType({row.number: row for row in _ROWS})


def look_up(number: int) -> Xid:
    """The row of an XID; for one that is not listed, Degraded without a recovery action."""
    return CATALOGUE.get(number) or _unclassified(number, "", "not in NVIDIA's catalogue, or listed there as unused")
