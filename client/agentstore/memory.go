package agentstore

import "github.com/muster-sched/muster/structs"

// Memory is a Store that stores nothing.
type Memory struct{}

// Load implements Store.
func (Memory) Load() (*Saved, error) { return &Saved{Swept: true}, nil }

// PutAlloc implements Store.
func (Memory) PutAlloc(...*structs.Allocation) error { return nil }

// PutTask implements Store.
func (Memory) PutTask(structs.AllocID, string, *TaskRecord) error { return nil }

// PutTaskSoon implements Store.
func (Memory) PutTaskSoon(structs.AllocID, string, *TaskRecord, func(error)) {}

// PutFinal implements Store.
func (Memory) PutFinal(structs.AllocID, *Final) error { return nil }

// DeleteAlloc implements Store.
func (Memory) DeleteAlloc(structs.AllocID) error { return nil }

// PutHistory implements Store.
func (Memory) PutHistory(History) error { return nil }

// PutMeta implements Store.
func (Memory) PutMeta(map[string]*string) error { return nil }

// PutGPUUses implements Store.
func (Memory) PutGPUUses(*GPUUses) error { return nil }

// PutSwept implements Store.
func (Memory) PutSwept() error { return nil }

// Close implements Store.
func (Memory) Close() error { return nil }
