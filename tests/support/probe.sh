#!/bin/sh
# A probe in POSIX sh: a NIC with a virtual function, and an FPGA. `probe.sh FOLDER [DEV] --fd N`; DEV: where device nodes are.
# A file in FOLDER changes what it says: lost (the FPGA does not answer), gone (the NIC is not listed), silent.
folder=$1 dev=/dev fd=1
case ${2-} in /*) dev=$2 ;; esac
while [ $# -gt 0 ]; do
  [ "$1" = --fd ] && fd=$2
  shift
done
exec 3>"/dev/fd/$fd"
read -r boot </proc/sys/kernel/random/boot_id
sequence=0
while :; do
  sequence=$((sequence + 1))
  lost=false
  [ -e "$folder/lost" ] && lost=true
  nic='{"id":"0000:3b:00.0","index":0,"type":"nic","vendor":"mellanox","productName":"ConnectX-7","firmware":"28.39",
    "pciBusId":"0000:3b:00.0","numaNode":0,"extra":{"linkType":{"string":"InfiniBand"},"speedGbps":{"int":400},
    "rdma":{"bool":true}},"capacity":{"vfs":"1"},"deviceNodes":["'$dev'/infiniband/uverbs0"],"partitions":[{"id":"vf-0",
    "name":"nic-0-vf-0","profile":"vf","index":0,"deviceNodes":["'$dev'/infiniband/uverbs1"]}]},'
  [ -e "$folder/gone" ] && nic=
  fpga='{"id":"XFL1A2B3","index":0,"type":"fpga","vendor":"xilinx","productName":"Alveo U250","extra":{"shell":
    {"version":"4.1.0"}},"capacity":{"memory":"64Gi"},"deviceNodes":["'$dev'/xclmgmt0"],"readings":{"lost":'$lost'}}'
  line='{"protocol":"nodedevices.io/probe/v1alpha1","probe":"shell","probeVersion":"1","instance":"'$$'","sequence":
    '$sequence',"time":"'$(date -u +%Y-%m-%dT%H:%M:%SZ)'","bootId":"'$boot'","driver":{"state":"Loaded","name":
    "mlx5_core","version":"24.10"},"devices":['$nic$fpga']}'
  [ -e "$folder/silent" ] || printf '%s\n' "$(printf '%s' "$line" | tr -d '\n')" >&3 || exit
  sleep 0.2
done
