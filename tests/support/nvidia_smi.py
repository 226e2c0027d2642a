"""`nvidia-smi -q -x` of one H100, in the form of driver 570 (nvsmi_device_v12.dtd), cut to what is read of it.

What the stand-in for NVIDIA's library says of its first GPU (tests/nvml), but for the power limit.
"""

from __future__ import annotations

from pathlib import Path

XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
  <driver_version>570.148.08</driver_version>
  <cuda_version>12.8</cuda_version>
  <attached_gpus>1</attached_gpus>
  <gpu id="00000000:17:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <product_brand>NVIDIA</product_brand>
    <product_architecture>Hopper</product_architecture>
    <persistence_mode>Enabled</persistence_mode>
    <mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
    <mig_devices>None</mig_devices>
    <uuid>GPU-00000000-0000-4000-8000-000000000000</uuid>
    <minor_number>0</minor_number>
    <gpu_recovery_action>None</gpu_recovery_action>
    <pci>
      <pci_bus_id>00000000:17:00.0</pci_bus_id>
      <pci_gpu_link_info>
        <pcie_gen><max_link_gen>5</max_link_gen><current_link_gen>5</current_link_gen></pcie_gen>
        <link_widths><max_link_width>16x</max_link_width><current_link_width>16x</current_link_width></link_widths>
      </pci_gpu_link_info>
      <replay_counter>0</replay_counter>
    </pci>
    <fan_speed>N/A</fan_speed>
    <clocks_event_reasons>
      <clocks_event_reason_applications_clocks_setting>Not Active</clocks_event_reason_applications_clocks_setting>
      <clocks_event_reason_hw_slowdown>Not Active</clocks_event_reason_hw_slowdown>
      <clocks_event_reason_hw_power_brake_slowdown>Not Active</clocks_event_reason_hw_power_brake_slowdown>
    </clocks_event_reasons>
    <fb_memory_usage><total>81559 MiB</total><reserved>600 MiB</reserved><used>1 MiB</used></fb_memory_usage>
    <utilization><gpu_util>0 %</gpu_util></utilization>
    <ecc_errors>
      <volatile>
        <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
        <dram_uncorrectable>0</dram_uncorrectable>
      </volatile>
      <aggregate>
        <sram_uncorrectable_parity>0</sram_uncorrectable_parity>
        <sram_uncorrectable_secded>0</sram_uncorrectable_secded>
        <dram_uncorrectable>0</dram_uncorrectable>
        <sram_threshold_exceeded>No</sram_threshold_exceeded>
      </aggregate>
    </ecc_errors>
    <remapped_rows>
      <remapped_row_corr>0</remapped_row_corr>
      <remapped_row_unc>0</remapped_row_unc>
      <remapped_row_pending>No</remapped_row_pending>
      <remapped_row_failure>No</remapped_row_failure>
    </remapped_rows>
    <temperature>
      <gpu_temp>43 C</gpu_temp>
      <gpu_temp_tlimit>44 C</gpu_temp_tlimit>
      <gpu_temp_slow_tlimit_threshold>-2 C</gpu_temp_slow_tlimit_threshold>
    </temperature>
    <gpu_power_readings>
      <average_power_draw>72.40 W</average_power_draw>
      <instant_power_draw>70.10 W</instant_power_draw>
      <current_power_limit>650.00 W</current_power_limit>
      <default_power_limit>700.00 W</default_power_limit>
    </gpu_power_readings>
    <clocks><sm_clock>1980 MHz</sm_clock><mem_clock>2619 MHz</mem_clock></clocks>
    <fabric><state>N/A</state></fabric>
  </gpu>
</nvidia_smi_log>
"""
PROGRAM = f"""\
#!/bin/sh
[ "$*" = "-q -x" ] || exit 1
cat <<'END'
{XML}END
"""


def program(folder: Path) -> Path:
    """Write an `nvidia-smi` that says this into the new folder, which is returned."""
    folder.mkdir()
    (folder / "nvidia-smi").write_text(PROGRAM)
    (folder / "nvidia-smi").chmod(0o755)
    return folder
