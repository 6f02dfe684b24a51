package main

import (
	"net/http"

	"github.com/muster-sched/muster/nomadlike"
	"github.com/muster-sched/muster/nomadlike/wire"
)

// flagLine is a command line that shows what one flag is for.
type flagLine struct {
	args    string // of the command, separated by blanks; '_' in an argument stands for a blank
	with    string // printed or asked with the flag only
	gone    string // printed or asked without the flag only
	stdin   string
	tty     bool           // on a terminal
	answers map[string]any // of the agent, instead of those that it has
}

const (
	submitted = "PUT /v1/jobs"
	varSource = "variable \"x\" {\n  default = \"/bin/old\"\n}\njob \"example\" {\n  group \"hello\" {\n    task \"greet\" {\n      driver = \"raw_exec\"\n      config {\n        command = var.x\n      }\n    }\n  }\n}\n"
)

// jobInJSON is a job file that is valid JSON but no object with a job's fields unless it is read as such.
const jobInJSON = `{"Job":{"ID":"example","Name":"example","TaskGroups":[{"Name":"g","Tasks":[{"Name":"t","Driver":"raw_exec","Config":{"command":"/bin/true"}}]}]}}`

// twoTasks answers an allocation with two tasks.
func twoTasks() map[string]any {
	a := *canned()["GET /v1/allocation/"+allocA].(*wire.Allocation)
	job := *a.Job
	job.TaskGroups = []*wire.TaskGroup{{Name: ptr("hello"), Tasks: []*wire.Task{{Name: "greet"}, {Name: "side"}}}}
	a.Job = &job
	a.TaskStates = map[string]*wire.TaskState{"greet": {State: "running"}, "side": {State: "running"}}
	return map[string]any{"GET /v1/allocation/" + allocA: &a}
}

// ranksOf answers the gang "pair" with two members of 8 ranks, whose logs say which stream they are.
func ranksOf() map[string]any {
	b := *canned()["GET /v1/allocation/"+allocA].(*wire.Allocation)
	b.ID = allocB
	out := map[string]any{"GET /v1/allocation/" + allocB: &b}
	for _, id := range []string{allocA, allocB} {
		out["GET /v1/client/fs/logs/"+id] = saysBack
	}
	out["GET /v1/job/pair/gangs"] = canned()["GET /v1/job/pair/gangs"].([]nomadlike.Gang)[:1]
	return out
}

// Answers of the agent that several lines need.
var (
	streams = map[string]any{"GET /v1/client/fs/stream/" + allocA: frame("one\ntwo\n") + frame("three\n")}
	// Two allocations run and neither can be restarted.
	restartFails = map[string]any{
		"GET /v1/job/example/allocations":        []*wire.AllocationListStub{{ID: allocA, JobID: "example", ClientStatus: "running", DesiredStatus: "run"}, {ID: allocB, JobID: "example", ClientStatus: "running", DesiredStatus: "run"}},
		"PUT /v1/allocation/" + allocA + "/stop": failure{500, "no"}, "PUT /v1/client/allocation/" + allocA + "/restart": failure{500, "no"},
	}
	canary  = map[string]any{"GET /v1/job/example/deployment": &wire.Deployment{ID: tokenID, JobID: "example", Namespace: "default", Status: "running"}, "PUT /v1/deployment/promote/" + tokenID: map[string]any{"EvalID": evalA}}
	drained = map[string]any{"GET /v1/node/" + nodeA + "/allocations": []*wire.Allocation{{ID: allocA, ClientStatus: "complete", DesiredStatus: "stop", TaskStates: map[string]*wire.TaskState{"t": {Events: []*wire.TaskEvent{{Type: "Checkpoint", DisplayMessage: "saved"}}}}}}}

	stoppedJob = map[string]any{"GET /v1/job/trial": &wire.Job{ID: ptr("trial"), Name: ptr("trial"), Namespace: ptr("default"), Stop: ptr(true)}}
)

// saysBack answers a log that says which stream it is.
func saysBack(r *http.Request) any {
	return frame("0: zero\n1: one " + r.URL.Query().Get("type") + "\n")
}

// flagLines are the witnesses of flags that have no better one: what is printed or asked depends on the flag. The key is the
// command and the flag, as in testdata/flags.txt.
var flagLines = map[string]flagLine{
	"* -address":                                 {args: "job status -address http://127.0.0.1:1", with: "127.0.0.1:1"},
	"* -client-cert":                             {args: "job status -address https://127.0.0.1:1 -client-cert /nowhere.pem -client-key /nowhere.key", with: "/nowhere.pem"},
	"* -client-key":                              {args: "job status -address https://127.0.0.1:1 -client-cert testdata/sim/team.csv -client-key /nowhere.key", with: "/nowhere.key"},
	"* -no-color":                                {args: "node status -force-color -no-color", gone: "\x1b[32m"},
	"* -region":                                  {args: "job status -region eu", with: "region=eu"},
	"acct -until":                                {args: "-until 2026-11-20T09:00:00Z", with: "until="},
	"acct -user":                                 {args: "-user bob", with: "user=bob"},
	"acl policy apply -job":                      {args: "-job web readers -", stdin: "x", with: `"JobID":"web"`},
	"acl policy apply -group":                    {args: "-job web -group api readers -", stdin: "x", with: `"Group":"api"`},
	"acl policy apply -task":                     {args: "-job web -group api -task t readers -", stdin: "x", with: `"Task":"t"`},
	"acl role create -description":               {args: "-name ops -policy readers -description look", with: "look"},
	"acl role info -by-name":                     {args: "-by-name ops", with: "/v1/acl/role/name/ops"},
	"acl role update -description":               {args: "-description look " + tokenID, with: `"look"`},
	"acl role update -name":                      {args: "-name dev " + tokenID, with: `"dev"`},
	"acl role update -no-merge":                  {args: "-name dev -policy other -no-merge " + tokenID, gone: `"readers"`},
	"acl role update -policy":                    {args: "-policy other " + tokenID, with: `"other"`},
	"acl token create -global":                   {args: "-name a -policy readers -global", with: `"Global":true`},
	"acl token create -role-id":                  {args: "-name a -role-id 5e38", with: `"ID":"5e38"`},
	"acl token create -role-name":                {args: "-name a -role-name ops", with: `"Name":"ops"`},
	"acl token create -type":                     {args: "-name a -type management", with: `"Type":"management"`},
	"acl token update -global":                   {args: "-global " + tokenID, with: `"Global":true`},
	"acl token update -name":                     {args: "-name bob " + tokenID, with: `"bob"`},
	"acl token update -policy":                   {args: "-policy other " + tokenID, with: `"other"`},
	"acl token update -role-id":                  {args: "-role-id 5e38 " + tokenID, with: `"ID":"5e38"`},
	"acl token update -role-name":                {args: "-role-name ops " + tokenID, with: `"Name":"ops"`},
	"acl token update -type":                     {args: "-type management " + tokenID, with: `"Type":"management"`},
	"agent -version":                             {args: "-version", with: "Muster v", gone: "the configuration is not usable"},
	"alloc exec -rank":                           {args: "-rank 3 8ba85cef true", with: "rank=3"},
	"alloc exec -task":                           {args: "-task side 8ba85cef true", answers: twoTasks(), with: "task=side"},
	"alloc exec -tty":                            {args: "-t 8ba85cef true", with: "tty=true"},
	"alloc fs -bytes":                            {args: "-tail -c 7 8ba85cef note.txt", with: "offset=7"},
	"alloc fs -exact":                            {args: "-exact 8ba85cef", with: "4096"},
	"alloc fs -follow":                           {args: "-f 8ba85cef note.txt", with: "follow=true"},
	"alloc fs -lines":                            {args: "-n 1 8ba85cef note.txt", with: "three\n", gone: "GET /v1/client/fs/cat/", answers: streams},
	"alloc fs -stat":                             {args: "-stat 8ba85cef note.txt", gone: "/cat/"},
	"alloc fs -tail":                             {args: "-tail 8ba85cef note.txt", with: "origin=end"},
	"alloc logs -bytes":                          {args: "-tail -c 7 -stdout 8ba85cef", with: "offset=7"},
	"alloc logs -json":                           {args: "-json -stdout 8ba85cef", with: `"File"`},
	"alloc logs -rank":                           {args: "-rank 1 -stdout 8ba85cef", gone: "0: zero", answers: map[string]any{"GET /v1/client/fs/logs/" + allocA: saysBack}},
	"alloc logs -tail":                           {args: "-tail -stdout 8ba85cef", with: "origin=end"},
	"alloc logs -task":                           {args: "-task side -stdout 8ba85cef", answers: twoTasks(), with: "task=side"},
	"alloc restart -all-tasks":                   {args: "-all-tasks 8ba85cef", with: `"AllTasks":true`},
	"alloc restart -task":                        {args: "-task side 8ba85cef", answers: twoTasks(), with: `"TaskName":"side"`},
	"alloc signal -task":                         {args: "-task side 8ba85cef", answers: twoTasks(), with: `"Task":"side"`},
	"alloc status -verbose":                      {args: "-verbose 8ba85cef", with: "job-anti-affinity"},
	"alloc stop -detach":                         {args: "-detach 8ba85cef", gone: "Monitoring evaluation"},
	"alloc stop -no-shutdown-delay":              {args: "-no-shutdown-delay -detach 8ba85cef", with: "no_shutdown_delay=true"},
	"alloc stop -verbose":                        {args: "-verbose 8ba85cef", with: `"26cfc69e-1111-4eee-8eee-000000000001"`},
	"alloc suspend -reason":                      {args: "-reason fans 8ba85cef", with: "fans"},
	"completion bash -no-descriptions":           {args: "-no-descriptions", with: "__completeNoDesc"},
	"completion fish -no-descriptions":           {args: "-no-descriptions", with: "__completeNoDesc"},
	"completion powershell -no-descriptions":     {args: "-no-descriptions", with: "__completeNoDesc"},
	"completion zsh -no-descriptions":            {args: "-no-descriptions", with: "__completeNoDesc"},
	"eval delete -filter":                        {args: "-yes -filter Status=='complete'", with: "Filter"},
	"eval delete -yes":                           {args: "-yes 26cfc69e", tty: true, gone: "[y/N]"},
	"eval list -filter":                          {args: "-filter Status=='failed'", with: "filter=Status"},
	"eval list -job":                             {args: "-job example", with: "job=example"},
	"eval list -page-token":                      {args: "-page-token x9", with: "next_token=x9"},
	"eval list -per-page":                        {args: "-per-page 7", with: "per_page=7"},
	"eval list -verbose":                         {args: "-verbose", with: evalA},
	"eval status -verbose":                       {args: "-verbose 26cfd7af", with: `Evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"event stream -index":                        {args: "-index 5", with: "from 5", answers: map[string]any{"GET /v1/event/stream": func(r *http.Request) any { return failure{400, "from " + r.URL.Query().Get("index")} }}},
	"gpu release -for":                           {args: "-self -for 30s", with: "for=30s"},
	"gpu release -self":                          {args: "-self", with: "/v1/agent/self"},
	"job allocs -verbose":                        {args: "-verbose example", with: "2026-11-20T11:10:00Z"},
	"job checkpoint -rank":                       {args: "-detach -rank 5 example", with: `"Rank":5`},
	"job checkpoint -timeout":                    {args: "-timeout 1ms example"},
	"job deployments -latest":                    {args: "-latest example", gone: "/v1/job/example/deployments"},
	"job dispatch -id-prefix-template":           {args: "-detach -id-prefix-template lr sweep", with: `"IdPrefixTemplate":"lr"`},
	"job dispatch -idempotency-token":            {args: "-detach -idempotency-token once sweep", with: "once"},
	"job dispatch -priority":                     {args: "-detach -priority 70 sweep", with: `"Priority":70`},
	"job dispatch -verbose":                      {args: "-verbose sweep", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job eval -detach":                           {args: "-detach example", gone: "Monitoring evaluation"},
	"job eval -verbose":                          {args: "-verbose example", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job history -diff-tag":                      {args: "-diff-tag known-good example", with: "diff_tag=known-good"},
	"job history -diff-version":                  {args: "-diff-version 2 example", with: "diff_version=2"},
	"job history -full":                          {args: "-full example", with: `"TaskGroups"`},
	"job history -version":                       {args: "-version 2 example", gone: "= 3"},
	"job init -list-templates":                   {args: "-list-templates", with: "torchrun"},
	"job inspect -version":                       {args: "-version 2 example", with: "versions"},
	"job inspect -with-vars":                     {args: "-hcl -with-vars example", with: "# -var lr=0.1", answers: map[string]any{"GET /v1/job/example/submission": &wire.JobSubmission{Source: "job \"example\" {}\n", VariableFlags: map[string]string{"lr": "0.1"}}}},
	"job logs -all":                              {args: "-all -stdout pair", with: "0| 0: zero", answers: ranksOf()},
	"job logs -both":                             {args: "-both pair", with: "-- stderr\n-- requests", answers: ranksOf()},
	"job logs -bytes":                            {args: "-tail -c 7 -stdout pair", with: "offset=7", answers: ranksOf()},
	"job logs -follow":                           {args: "-f -stdout pair", with: "follow=true", answers: ranksOf()},
	"job logs -json":                             {args: "-json -stdout pair", with: `"File"`, answers: ranksOf()},
	"job logs -lines":                            {args: "-tail -n 1 -stdout pair", gone: "zero", answers: ranksOf()},
	"job logs -stderr":                           {args: "-stderr pair", gone: "type=stdout", answers: ranksOf()},
	"job logs -stdout":                           {args: "-stdout pair", gone: "type=stderr", answers: ranksOf()},
	"job logs -tail":                             {args: "-tail -stdout pair", with: "origin=end", answers: ranksOf()},
	"job logs -task":                             {args: "-task side -stdout pair", with: "side", answers: ranksOf()},
	"job periodic force -detach":                 {args: "-detach nightly", gone: "Monitoring evaluation"},
	"job periodic force -verbose":                {args: "-verbose nightly", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job plan -diff":                             {args: "-diff=false -", stdin: jobSource, with: `"Diff":false`},
	"job plan -json":                             {args: "-json -", stdin: jobSource, with: "is not JSON"},
	"job plan -var":                              {args: "-var x=/bin/new -", stdin: varSource, with: "/bin/new"},
	"job plan -verbose":                          {args: "-verbose -", stdin: jobSource, with: "greet.sh", answers: map[string]any{"PUT /v1/job/example/plan": &wire.JobPlanResponse{Diff: &wire.JobDiff{Type: "Added", ID: "example", Fields: []*wire.FieldDiff{{Type: "Added", Name: "Name", New: "greet.sh"}}}}}},
	"job promote -group":                         {args: "-detach -group hello example", with: `"Groups":["hello"]`, answers: canary},
	"job revert -detach":                         {args: "-detach example 2", gone: "Monitoring evaluation"},
	"job revert -verbose":                        {args: "-verbose example 2", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job run -check-index":                       {args: "-check-index 17 -detach -", stdin: jobSource, with: `"EnforceIndex":true`},
	"job run -eval-priority":                     {args: "-eval-priority 70 -detach -", stdin: jobSource, with: `"EvalPriority":70`},
	"job run -json":                              {args: "-json -", stdin: jobSource, with: "is not JSON"},
	"job run -output":                            {args: "-output -", stdin: jobSource, gone: submitted},
	"job run -preserve-counts":                   {args: "-preserve-counts -detach -", stdin: jobSource, with: `"PreserveCounts":true`},
	"job run -preserve-resources":                {args: "-preserve-resources -detach -", stdin: jobSource, with: `"PreserveResources":true`},
	"job run -var":                               {args: "-var x=/bin/new -detach -", stdin: varSource, with: "/bin/new"},
	"job run -verbose":                           {args: "-verbose -", stdin: jobSource, with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job scale -check-index":                     {args: "-detach -check-index 17 example 5", with: "17"},
	"job scale -detach":                          {args: "-detach example 5", gone: "Monitoring evaluation"},
	"job scale -message":                         {args: "-detach -message more example 5", with: "more"},
	"job scale -verbose":                         {args: "-verbose example 5", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job start -detach":                          {args: "-detach trial", gone: "Monitoring evaluation", answers: stoppedJob},
	"job start -verbose":                         {args: "-verbose trial", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`, answers: stoppedJob},
	"job status -all-allocs":                     {args: "-all-allocs example", with: "all=true"},
	"job status -filter":                         {args: "-filter Status=='dead'", with: "filter=Status"},
	"job status -short":                          {args: "-short example", gone: "8ba85cef"},
	"job status -verbose":                        {args: "-verbose example", with: allocA},
	"job stop -detach":                           {args: "-detach example", gone: "Monitoring evaluation"},
	"job stop -global":                           {args: "-detach -global example", with: "global=true"},
	"job stop -verbose":                          {args: "-verbose example", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"job suspend -reason":                        {args: "-reason fans example", with: "fans"},
	"job tag apply -description":                 {args: "-name good -description best example", with: "best"},
	"job tag unset -name":                        {args: "-name good example", with: "versions/good/tag"},
	"job validate -json":                         {args: "-json -", stdin: jobSource, with: "is not JSON"},
	"job validate -var":                          {args: "-var x=/bin/new -", stdin: varSource, with: "/bin/new"},
	"job why -nodes":                             {args: "-nodes train"},
	"job why -verbose":                           {args: "-verbose train", with: "binpack 0.800", answers: map[string]any{"GET /v1/job/train/why": &nomadlike.Why{JobID: "train", Namespace: "default", Status: "pending", Reason: "RESOURCES", Waiting: 1, Groups: []nomadlike.WhyGroup{{Name: "work", Reason: "RESOURCES", Wanted: 1, Scores: []nomadlike.Score{{NodeName: "gpu-01", Score: 0.8, Terms: map[string]float64{"binpack": 0.8}}}}}}}},
	"monitor -json":                              {args: "-json"},
	"monitor -server-id":                         {args: "-server-id leader", with: "server_id=leader"},
	"namespace apply -meta":                      {args: "-meta team=nlp ml", with: `"nlp"`},
	"namespace apply -quota":                     {args: "-quota other ml", with: `"other"`},
	"node drain -force":                          {args: "-yes -enable -detach -force 46f1c6c4", with: `"Deadline":-1000000000`},
	"node drain -ignore-system":                  {args: "-yes -enable -detach -ignore-system 46f1c6c4", with: `"IgnoreSystemJobs":true`},
	"node drain -meta":                           {args: "-yes -enable -detach -meta why=fans 46f1c6c4", with: `"fans"`},
	"node drain -monitor":                        {args: "-monitor 46f1c6c4", with: "is not draining"},
	"node drain -no-deadline":                    {args: "-yes -enable -detach -no-deadline 46f1c6c4", with: `"Deadline":0`},
	"node drain -yes":                            {args: "-enable -detach -yes 46f1c6c4", tty: true, gone: "[y/N]"},
	"node eligibility -enable":                   {args: "-enable gpu-01", with: `"eligible"`},
	"node eligibility -self":                     {args: "-self -disable", with: "/v1/agent/self"},
	"node intro create -node-name":               {args: "-node-name c1", with: `"c1"`},
	"node intro create -node-pool":               {args: "-node-pool h100", with: `"h100"`},
	"node intro create -ttl":                     {args: "-ttl 2h"},
	"node meta read -node-id":                    {args: "-node-id 46f1c6c4", with: nodeA},
	"node pool apply -description":               {args: "-description fast a100", with: `"fast"`},
	"node pool apply -max-checkpoints":           {args: "-max-checkpoints 4 a100", with: "4"},
	"node pool apply -meta":                      {args: "-meta team=nlp a100", with: `"nlp"`},
	"node pool apply -overcommit-cpu":            {args: "-overcommit-cpu 150 a100", with: "150"},
	"node pool apply -overcommit-memory":         {args: "-overcommit-memory 120 a100", with: "120"},
	"node pool apply -power-budget-w":            {args: "-power-budget-w 1600 a100", with: "1600"},
	"node pool apply -scheduler-algorithm":       {args: "-scheduler-algorithm spread a100", with: `"spread"`},
	"node pool apply -score-weights":             {args: "-score-weights fit=31,cost=40 a100", with: "31"},
	"node pool list -filter":                     {args: "-filter Name=='x'", with: "filter=Name"},
	"node pool nodes -verbose":                   {args: "-verbose default", with: nodeA},
	"node purge -yes":                            {args: "-yes 46f1c6c4", tty: true, gone: "[y/N]"},
	"node status -filter":                        {args: "-filter Status=='down'", with: "filter=Status"},
	"node status -os":                            {args: "-os", with: "OS"},
	"node status -page-token":                    {args: "-page-token x9", with: "next_token=x9"},
	"node status -per-page":                      {args: "-per-page 7", with: "per_page=7"},
	"node status -stats":                         {args: "-stats 46f1c6c4"},
	"operator api -filter":                       {args: "-filter Name=='x' /v1/namespaces", with: "filter=Name"},
	"operator api -method":                       {args: "-X PUT /v1/system/gc", with: "PUT /v1/system/gc"},
	"operator api -verbose":                      {args: "-verbose /v1/namespaces", with: "> GET"},
	"operator autopilot set-config -check-index": {args: "-check-index 3 -min-quorum 3", with: "cas=3"},
	"operator autopilot set-config -last-contact-threshold":     {args: "-last-contact-threshold 333ms", with: "333ms"},
	"operator autopilot set-config -max-trailing-logs":          {args: "-max-trailing-logs 333", with: "333"},
	"operator autopilot set-config -server-stabilization-time":  {args: "-server-stabilization-time 33s", with: "33s"},
	"operator decisions -kind":                                  {args: "-kind gang", with: "kind=gang"},
	"operator decisions -queue":                                 {args: "-queue research", with: "queue=research"},
	"operator decisions -since":                                 {args: "-since 1h", with: "since="},
	"operator metrics -format":                                  {args: "-format prometheus", with: "format=prometheus"},
	"operator metrics -pretty":                                  {args: "-pretty"},
	"operator raft remove-peer -peer-address":                   {args: "-yes -peer-address 10.0.0.2:4647", with: "address=10.0.0.2"},
	"operator raft remove-peer -yes":                            {args: "-yes -peer-id x", tty: true, gone: "[y/N]"},
	"operator raft transfer-leadership -peer-id":                {args: "-peer-id s2", with: "id=s2"},
	"operator scheduler dump -node-pool":                        {args: "-node-pool h100 /nowhere/x", with: "h100"},
	"operator scheduler set-config -check-index":                {args: "-check-index 3 -gpu-fit first", with: "cas=3"},
	"operator scheduler set-config -checkpoint-storage":         {args: "-checkpoint-storage lustre1=4", with: "lustre1"},
	"operator scheduler set-config -topology-levels":            {args: "-topology-levels rack,pod", with: `"TopologyLevels":["rack","pod"]`},
	"operator scheduler set-config -max-checkpoints":            {args: "-max-checkpoints 33", with: "33"},
	"operator scheduler set-config -memory-oversubscription":    {args: "-memory-oversubscription=true", with: `"MemoryOversubscriptionEnabled":true`},
	"operator scheduler set-config -pause-eval-broker":          {args: "-pause-eval-broker=true", with: `"PauseEvalBroker":true`},
	"operator scheduler set-config -preempt-service-scheduler":  {args: "-preempt-service-scheduler=true", with: `"ServiceSchedulerEnabled":true`},
	"operator scheduler set-config -preempt-sysbatch-scheduler": {args: "-preempt-sysbatch-scheduler=true", with: `"SysBatchSchedulerEnabled":true`},
	"operator scheduler set-config -preempt-system-scheduler":   {args: "-preempt-system-scheduler=true", with: `"SystemSchedulerEnabled":true`},
	"operator scheduler set-config -reject-job-registration":    {args: "-reject-job-registration=true", with: `"RejectJobRegistration":true`},
	"operator scheduler set-config -score-weights":              {args: "-score-weights fit=31,cost=40", with: "31"},
	"operator raft list-peers -stale":                           {args: "-stale", with: "stale=true"},
	"operator snapshot save -stale":                             {args: "-stale /nowhere/x", with: "stale=true"},
	"operator upgrade finish -yes":                              {args: "-yes", tty: true, gone: "[y/N]"},
	"system gc -yes":                                            {args: "-yes", tty: true, gone: "[y/N]"},
	"queue -queue":                                              {args: "-queue research", with: "research"},
	"run -check-index":                                          {args: "-check-index 17 -detach -", stdin: jobSource, with: `"EnforceIndex":true`},
	"run -cores":                                                {args: "-output -name x -cores 3 -- true", with: "cores  = 3"},
	"run -driver":                                               {args: "-output -name x -driver podman -- true", with: `"podman"`},
	"run -eval-priority":                                        {args: "-eval-priority 70 -detach -", stdin: jobSource, with: `"EvalPriority":70`},
	"run -json":                                                 {args: "-json -", stdin: jobSource, with: "is not JSON"},
	"run -log":                                                  {args: "-output -name x -log /var/log/x -- true", with: "log_path"},
	"run -log-error":                                            {args: "-output -name x -log /var/log/x -log-error /var/log/y -- true", with: "log_error_path"},
	"run -preserve-counts":                                      {args: "-preserve-counts -detach -", stdin: jobSource, with: `"PreserveCounts":true`},
	"run -preserve-resources":                                   {args: "-preserve-resources -detach -", stdin: jobSource, with: `"PreserveResources":true`},
	"run -ranks":                                                {args: "-output -name x -ranks 4 -- true", with: "ranks = 4"},
	"run -user":                                                 {args: "-output -name x -user daemon -- true", with: `"daemon"`},
	"run -as-me":                                                {args: "-output -name x -image y -as-me -- true", with: "user "},
	"run -var":                                                  {args: "-var x=/bin/new -detach -", stdin: varSource, with: "/bin/new"},
	"run -verbose":                                              {args: "-verbose -", stdin: jobSource, with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`},
	"server force-leave -prune":                                 {args: "-prune s2.global", with: "prune"},
	"server members -detailed":                                  {args: "-detailed", with: "build=2.0.6"},
	"server members -verbose":                                   {args: "-verbose", with: "Raft"},
	"service info -choose":                                      {args: "-choose 1|me llm", with: "choose="},
	"service info -filter":                                      {args: "-filter Health=='passing' llm", with: "filter=Health"},
	"status -verbose":                                           {args: "-verbose example", with: allocA},
	"var get -template":                                         {args: "-out go-template -t {{.Items.user}} app/db", with: "me\n"},
	"var list -filter":                                          {args: "-filter Path==x", with: "filter=Path"},
	"var put -check-index":                                      {args: "-check-index 7 app/db user=me", with: "cas=7"},
	"var put -in":                                               {args: "-in json -", stdin: "path = \"app/db\"\nitems {\n  user = \"me\"\n}\n"},
	"var put -template":                                         {args: "-out go-template -t {{.Items.user}} app/db user=me", with: "me\n"},
	"shell -begin":                                              {args: "-name x -begin 8h", with: `2026-11-20T20:00:00Z`},
	"shell -cores":                                              {args: "-name x -cores 3", with: `"Cores":3`},
	"shell -cpu":                                                {args: "-name x -cpu 333", with: `"CPU":333`},
	"shell -depends":                                            {args: "-name x -depends prep", with: `prep`},
	"shell -dir":                                                {args: "-name x -dir /srv", with: `/srv`},
	"shell -disk":                                               {args: "-name x -disk 2G", with: `"SizeMB":2048`},
	"shell -driver":                                             {args: "-name x -driver podman", with: `"Driver":"podman"`},
	"shell -env":                                                {args: "-name x -env LR=0.1", with: `"LR":"0.1"`},
	"shell -gpus":                                               {args: "-name x -gpus 2", with: `"GPU":{"Count":2`},
	"shell -image":                                              {args: "-name x -image y", with: `"image"`},
	"shell -log":                                                {args: "-name x -log /var/log/x", with: `/var/log/x`},
	"shell -log-error":                                          {args: "-name x -log /var/log/x -log-error /var/log/y", with: `/var/log/y`},
	"shell -mem":                                                {args: "-name x -mem 64G", with: `"MemoryMB":65536`},
	"shell -name":                                               {args: "-name mine", with: `mine`},
	"shell -pack":                                               {args: "-name x -pack", with: `which is outside the directory`}, // its link to testdata
	"shell -pool":                                               {args: "-name x -pool h100", with: `h100`},
	"shell -priority":                                           {args: "-name x -priority high", with: `"Priority":70`},
	"shell -queue":                                              {args: "-name x -queue research", with: `research`},
	"shell -requeue":                                            {args: "-name x -requeue 3", with: `"Requeue"`},
	"shell -shm":                                                {args: "-name x -shm 64", with: `"ShmMB":64`},
	"shell -time":                                               {args: "-name x -time 2h", with: `7200000000000`},
	"shell -ulimit":                                             {args: "-name x -ulimit nofile=1024", with: `nofile`},
	"shell -umask":                                              {args: "-name x -umask 0027", with: `"Umask":"0027"`},
	"shell -user":                                               {args: "-name x -user daemon", with: `daemon`},
	"shell -as-me":                                              {args: "-name x -as-me"},
	"shell -no-env":                                             {args: "-name x -no-env"},
	"shell -preemptible":                                        {args: "-name x -preemptible", with: `"Preemptible":true`},
	"shell -rdma":                                               {args: "-name x -rdma"},
	"job promote -detach":                                       {args: "-detach example", gone: "Monitoring evaluation", answers: canary},
	"job promote -verbose":                                      {args: "-verbose example", with: `Monitoring evaluation "26cfc69e-1111-4eee-8eee-000000000001"`, answers: canary},
	"job logs -rank":                                            {args: "-rank 8 -stdout pair", with: allocB, answers: ranksOf()},
	"job logs -group":                                           {args: "-group none -stdout pair", with: "no allocation", answers: ranksOf()},
	"job exec -group":                                           {args: "-group none pair true", with: "no allocation", answers: ranksOf()},
	"job exec -rank":                                            {args: "-rank 8 pair true", with: allocB, answers: ranksOf()},
	"job exec -task":                                            {args: "-task side pair true", with: "side", answers: ranksOf()},
	"job exec -tty":                                             {args: "-t pair true", with: "tty=true", answers: ranksOf()},
	"alloc fs -human":                                           {args: "-H=false 8ba85cef", with: "4096"},
	"alloc fs -verbose":                                         {args: "-verbose 8ba85cef", with: "2026-11-20T12:00:00Z"},
	"alloc checks -verbose":                                     {args: "-verbose 8ba85cef", with: "200"},
	"namespace apply -json":                                     {args: "-json -", stdin: `name = "ml"`, with: "is not JSON"},
	"node pool apply -json":                                     {args: "-json -", stdin: `node_pool "a100" {}`, with: "is not JSON"},
	"job plan -var-file":                                        {args: "-var-file testdata/new.vars -", stdin: varSource, with: `"command":"/bin/new"`},
	"job validate -var-file":                                    {args: "-var-file testdata/new.vars -", stdin: varSource, with: `"command":"/bin/new"`},
	"job run -var-file":                                         {args: "-var-file testdata/new.vars -detach -", stdin: varSource, with: `"command":"/bin/new"`},
	"run -var-file":                                             {args: "-var-file testdata/new.vars -detach -", stdin: varSource, with: `"command":"/bin/new"`},
	"operator api -header":                                      {args: "-H X-Mark:_seen /v1/namespaces", with: "mark seen", answers: map[string]any{"GET /v1/namespaces": func(r *http.Request) any { return "mark " + r.Header.Get("X-Mark") }}},
	"job restart -all-tasks":                                    {args: "-all-tasks example", with: `"AllTasks":true`, answers: restartFails},
	"job restart -yes":                                          {args: "-yes example", tty: true, gone: "[y/N]", answers: restartFails},
	"job restart -no-shutdown-delay":                            {args: "-reschedule -no-shutdown-delay example", with: "no_shutdown_delay=true", answers: restartFails},
	"job wait -quiet":                                           {args: "-q trial", gone: `Job "trial"`},
	"alloc cp -task":                                            {args: "-task side testdata/new.vars 8ba85cef:/tmp/x", with: "task=side", answers: twoTasks()},
	"tls cert create -ca":                                       {args: "-server -ca /nowhere/c", with: "/nowhere/c"},
	"tls cert create -key":                                      {args: "-server -ca testdata/sim/team.csv -key /nowhere/k", with: "/nowhere/k"},
	"deployment list -verbose":                                  {args: "-verbose", answers: map[string]any{"GET /v1/deployments": []*wire.Deployment{{ID: evalA, JobID: "example", Namespace: "default", Status: "running"}}}, with: evalA},
	"job deployments -verbose":                                  {args: "-verbose example", answers: map[string]any{"GET /v1/job/example/deployments": []*wire.Deployment{{ID: evalA, JobID: "example", Namespace: "default", Status: "running"}}}, with: evalA},
	"node drain -verbose":                                       {args: "-enable -verbose 46f1c6c4", with: allocA + `": saved`, answers: drained},
	"node drain -detach":                                        {args: "-enable -detach 46f1c6c4", gone: "have stopped", answers: drained},
}
