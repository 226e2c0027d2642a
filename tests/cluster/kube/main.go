// One binary that is every part of Kubernetes that the test cluster runs: the name it is called by says which.
//
// One link instead of six keeps the build on two cores within minutes and the binaries within 150 MB.
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	kubectl "k8s.io/kubectl/pkg/cmd"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controllermanager "k8s.io/kubernetes/cmd/kube-controller-manager/app"
	scheduler "k8s.io/kubernetes/cmd/kube-scheduler/app"
	kubelet "k8s.io/kubernetes/cmd/kubelet/app"
)

func main() {
	var command *cobra.Command
	switch name := filepath.Base(os.Args[0]); name {
	case "etcd":
		etcdmain.Main(os.Args)
		return
	case "kube-apiserver":
		command = apiserver.NewAPIServerCommand()
	case "kube-controller-manager":
		command = controllermanager.NewControllerManagerCommand()
	case "kube-scheduler":
		command = scheduler.NewSchedulerCommand()
	case "kubelet":
		command = kubeletCommand()
	case "kubectl":
		command = kubectl.NewDefaultKubectlCommand()
	default:
		fmt.Fprintf(os.Stderr, "%s: no component of that name; link this binary under the name of one\n", name)
		os.Exit(2)
	}
	os.Exit(cli.Run(command))
}

// kubeletCommand calls a function that takes a context from 1.33 on.
func kubeletCommand() *cobra.Command {
	switch command := any(kubelet.NewKubeletCommand).(type) {
	case func() *cobra.Command:
		return command()
	case func(context.Context) *cobra.Command:
		return command(context.Background())
	default:
		panic(fmt.Sprintf("NewKubeletCommand is a %T", command))
	}
}
