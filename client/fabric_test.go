package client

import (
	"maps"
	"testing"
)

// TestFabricVariables: what a node says of its network is said to NCCL, Gloo, PyTorch and UCX, and nothing else is.
func TestFabricVariables(t *testing.T) {
	if got := (Fabric{}).vars(); len(got) > 0 {
		t.Errorf("a fabric that says nothing gives %v", got)
	}
	got := Fabric{Interfaces: []string{"eth2"}, HCAs: []string{"mlx5_0"}, SL: 3, TC: 106, Env: map[string]string{"NCCL_IB_TC": "64"}}.vars()
	want := map[string]string{"NCCL_SOCKET_IFNAME": "=eth2", "GLOO_SOCKET_IFNAME": "eth2", "TP_SOCKET_IFNAME": "eth2", "NCCL_IB_HCA": "=mlx5_0",
		"NCCL_IB_SL": "3", "UCX_IB_SL": "3", "NCCL_IB_TC": "64", "UCX_IB_TRAFFIC_CLASS": "106"}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
