// The kubelet's device manager and topology manager, without the rest of a kubelet: they admit pods as a kubelet does, and
// what they would call a device plugin for, they ask of whoever started this program. One JSON object a line: requests
// on standard input, answers and questions on standard output.
//
//	{"do": "start", "folder": F, "policy": "none", "nodes": 2}       a kubelet; F has its checkpoint: again is a restart
//	{"do": "list", "resource": R, "devices": [{"id": I, "healthy": true, "nodes": [0]}]}
//	{"do": "admit", "pod": P, "containers": [{"name": C, "kind": "init" | "sidecar" | "", "limits": {R: 3}}]}
//	{"do": "end", "pods": [P]}
//
// Each is answered by {"done": true, "error": E}, for an admission with "held": {C: {R: [I]}}. Before that may come
// {"call": "prefer", "resource": R, "available": [I], "must": [I], "size": N} and {"call": "allocate", "resource": R,
// "ids": [I]}, each answered by {"ids": [I], "error": E}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	_ "unsafe" // for linkname

	cadvisor "github.com/google/cadvisor/lib/model"
	"google.golang.org/grpc"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/cm/containermap"
	"k8s.io/kubernetes/pkg/kubelet/cm/devicemanager"
	"k8s.io/kubernetes/pkg/kubelet/cm/topologymanager"
	"k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/lifecycle"
)

// The exported NewManagerImpl has the machine's /var/lib/kubelet written into it.
//
//go:linkname newManager k8s.io/kubernetes/pkg/kubelet/cm/devicemanager.newManagerImpl
func newManager(klog.Logger, string, []cadvisor.Node, topologymanager.Store) (*devicemanager.ManagerImpl, error)

type container struct {
	Name   string           `json:"name"`
	Kind   string           `json:"kind"`
	Limits map[string]int64 `json:"limits"`
}

type request struct {
	Do         string      `json:"do"`
	Folder     string      `json:"folder"`
	Policy     string      `json:"policy"`
	Nodes      int         `json:"nodes"`
	Resource   string      `json:"resource"`
	Devices    []device    `json:"devices"`
	Pod        string      `json:"pod"`
	Pods       []string    `json:"pods"`
	Containers []container `json:"containers"`
	Ids        []string    `json:"ids"`
	Error      string      `json:"error"`
}

type device struct {
	Id      string  `json:"id"`
	Healthy bool    `json:"healthy"`
	Nodes   []int64 `json:"nodes"`
}

type held map[string]map[string][]string

type answer struct {
	Done  bool   `json:"done"`
	Error string `json:"error"`
	Held  held   `json:"held,omitempty"`
}

type question struct {
	Call      string   `json:"call"`
	Resource  string   `json:"resource"`
	Available []string `json:"available,omitempty"`
	Must      []string `json:"must,omitempty"`
	Size      int32    `json:"size,omitempty"`
	Ids       []string `json:"ids,omitempty"`
}

// line is the conversation.
type line struct {
	in  *json.Decoder
	out *json.Encoder
}

// ask has the other side's ids. Its error is what a plugin would have returned.
func (l *line) ask(q question) ([]string, error) {
	if err := l.out.Encode(q); err != nil {
		return nil, err
	}
	var got request
	if err := l.in.Decode(&got); err != nil {
		return nil, err
	}
	if got.Error != "" {
		return nil, errors.New(got.Error)
	}
	return got.Ids, nil
}

// remote is a device plugin at the other end of the line.
type remote struct {
	api.DevicePluginClient
	line     *line
	resource string
}

func (r *remote) API() api.DevicePluginClient { return r }
func (r *remote) Resource() string            { return r.resource }
func (r *remote) SocketPath() string          { return "" }

func (r *remote) GetDevicePluginOptions(context.Context, *api.Empty, ...grpc.CallOption) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{GetPreferredAllocationAvailable: true}, nil
}

func (r *remote) GetPreferredAllocation(_ context.Context, in *api.PreferredAllocationRequest, _ ...grpc.CallOption) (*api.PreferredAllocationResponse, error) {
	of := in.ContainerRequests[0]
	ids, err := r.line.ask(question{Call: "prefer", Resource: r.resource, Available: of.AvailableDeviceIDs, Must: of.MustIncludeDeviceIDs, Size: of.AllocationSize})
	if err != nil {
		return nil, err
	}
	return &api.PreferredAllocationResponse{ContainerResponses: []*api.ContainerPreferredAllocationResponse{{DeviceIDs: ids}}}, nil
}

func (r *remote) Allocate(_ context.Context, in *api.AllocateRequest, _ ...grpc.CallOption) (*api.AllocateResponse, error) {
	if _, err := r.line.ask(question{Call: "allocate", Resource: r.resource, Ids: in.ContainerRequests[0].DevicesIds}); err != nil {
		return nil, err
	}
	return &api.AllocateResponse{ContainerResponses: []*api.ContainerAllocateResponse{{}}}, nil
}

// kubelet is the two managers, and the pods that are not at an end.
type kubelet struct {
	devices  *devicemanager.ManagerImpl
	topology topologymanager.Manager
	pods     map[string]*v1.Pod
	plugins  map[string]bool
}

func start(of request, pods map[string]*v1.Pod) (*kubelet, error) {
	var nodes []cadvisor.Node
	for id := range of.Nodes {
		nodes = append(nodes, cadvisor.Node{Id: id})
	}
	topology, err := topologymanager.NewManager(klog.TODO(), nodes, of.Policy, "container", nil)
	if err != nil {
		return nil, err
	}
	devices, err := newManager(klog.TODO(), filepath.Join(of.Folder, "kubelet.sock"), nodes, topology)
	if err != nil {
		return nil, err
	}
	k := &kubelet{devices: devices, topology: topology, pods: pods, plugins: map[string]bool{}}
	ready := config.NewSourcesReady(func(sets.Set[string]) bool { return true })
	if err := devices.Start(klog.TODO(), k.active, ready, containermap.NewContainerMap(), sets.New[string]()); err != nil {
		return nil, err
	}
	topology.AddHintProvider(klog.TODO(), devices)
	return k, nil
}

func (k *kubelet) active() []*v1.Pod {
	var found []*v1.Pod
	for _, pod := range k.pods {
		found = append(found, pod)
	}
	return found
}

func (k *kubelet) list(l *line, of request) error {
	if !k.plugins[of.Resource] {
		if err := k.devices.PluginConnected(context.Background(), of.Resource, &remote{line: l, resource: of.Resource}); err != nil {
			return err
		}
		k.plugins[of.Resource] = true
	}
	var devices []*api.Device
	for _, each := range of.Devices {
		one := &api.Device{ID: each.Id, Health: api.Unhealthy}
		if each.Healthy {
			one.Health = api.Healthy
		}
		for _, node := range each.Nodes {
			if one.Topology == nil {
				one.Topology = &api.TopologyInfo{}
			}
			one.Topology.Nodes = append(one.Topology.Nodes, &api.NUMANode{ID: node})
		}
		devices = append(devices, one)
	}
	k.devices.PluginListAndWatchReceiver(klog.TODO(), of.Resource, &api.ListAndWatchResponse{Devices: devices})
	return nil
}

// admit is what a kubelet does with a new pod; a pod that is refused is at its end.
func (k *kubelet) admit(of request) (held, error) {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: of.Pod, UID: types.UID(of.Pod)}}
	for _, each := range of.Containers {
		one := v1.Container{Name: each.Name, Resources: v1.ResourceRequirements{Limits: v1.ResourceList{}}}
		for name, count := range each.Limits {
			one.Resources.Limits[v1.ResourceName(name)] = *resource.NewQuantity(count, resource.DecimalSI)
		}
		one.Resources.Requests = one.Resources.Limits
		switch each.Kind {
		case "init":
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
		case "sidecar":
			always := v1.ContainerRestartPolicyAlways
			one.RestartPolicy = &always
			pod.Spec.InitContainers = append(pod.Spec.InitContainers, one)
		default:
			pod.Spec.Containers = append(pod.Spec.Containers, one)
		}
	}
	k.pods[of.Pod] = pod
	result := k.topology.Admit(context.Background(), &lifecycle.PodAdmitAttributes{Pod: pod, Operation: lifecycle.AddOperation})
	if !result.Admit {
		k.end(of.Pod)
		return nil, fmt.Errorf("%s: %s", result.Reason, result.Message)
	}
	found := held{}
	for _, each := range of.Containers {
		found[each.Name] = map[string][]string{}
		for name, devices := range k.devices.GetDevices(of.Pod, each.Name) {
			for id := range devices {
				found[each.Name][name] = append(found[each.Name][name], id)
			}
		}
	}
	return found, nil
}

func (k *kubelet) end(name string) {
	delete(k.pods, name)
	_ = k.topology.RemoveContainer(klog.TODO(), name)
}

func main() {
	klog.SetOutput(io.Discard)
	klog.LogToStderr(false)
	l := &line{in: json.NewDecoder(bufio.NewReader(os.Stdin)), out: json.NewEncoder(os.Stdout)}
	var k *kubelet
	for {
		var of request
		if err := l.in.Decode(&of); err != nil {
			return
		}
		said := answer{Done: true}
		var err error
		switch of.Do {
		case "start":
			pods := map[string]*v1.Pod{}
			if k != nil {
				pods = k.pods
				_ = k.devices.Stop(klog.TODO())
			}
			k, err = start(of, pods)
		case "list":
			err = k.list(l, of)
		case "admit":
			said.Held, err = k.admit(of)
		case "end":
			for _, name := range of.Pods {
				k.end(name)
			}
		default:
			err = fmt.Errorf("unknown request %q", of.Do)
		}
		if err != nil {
			said.Error = err.Error()
		}
		_ = l.out.Encode(said)
	}
}
