// A client of the Container Runtime Interface, as a kubelet is one: `cri SOCKET METHOD <REQUEST >ANSWER`, both JSON with
// the names of the interface's messages.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// What a method takes and gives.
var methods = map[string]func() (request, answer any){
	"Version":          func() (any, any) { return &v1.VersionRequest{}, &v1.VersionResponse{} },
	"Status":           func() (any, any) { return &v1.StatusRequest{}, &v1.StatusResponse{} },
	"RunPodSandbox":    func() (any, any) { return &v1.RunPodSandboxRequest{}, &v1.RunPodSandboxResponse{} },
	"StopPodSandbox":   func() (any, any) { return &v1.StopPodSandboxRequest{}, &v1.StopPodSandboxResponse{} },
	"RemovePodSandbox": func() (any, any) { return &v1.RemovePodSandboxRequest{}, &v1.RemovePodSandboxResponse{} },
	"PodSandboxStatus": func() (any, any) { return &v1.PodSandboxStatusRequest{}, &v1.PodSandboxStatusResponse{} },
	"ListPodSandbox":   func() (any, any) { return &v1.ListPodSandboxRequest{}, &v1.ListPodSandboxResponse{} },
	"CreateContainer":  func() (any, any) { return &v1.CreateContainerRequest{}, &v1.CreateContainerResponse{} },
	"StartContainer":   func() (any, any) { return &v1.StartContainerRequest{}, &v1.StartContainerResponse{} },
	"ContainerStatus":  func() (any, any) { return &v1.ContainerStatusRequest{}, &v1.ContainerStatusResponse{} },
	"ExecSync":         func() (any, any) { return &v1.ExecSyncRequest{}, &v1.ExecSyncResponse{} },
}

func call(socket, method string) error {
	make, known := methods[method]
	if !known {
		return fmt.Errorf("no method %s", method)
	}
	request, answer := make()
	input, err := io.ReadAll(os.Stdin)
	if err != nil {
		return err
	}
	if len(input) > 0 {
		if err := json.Unmarshal(input, request); err != nil {
			return err
		}
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	service := "/runtime.v1.RuntimeService/"
	if err := connection.Invoke(ctx, service+method, request, answer, grpc.WaitForReady(true)); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(answer)
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: cri SOCKET METHOD <REQUEST")
		os.Exit(2)
	}
	if err := call(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
