//go:build e2e

package train

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// ofSlurm is shaped as the scripts are that people start PyTorch with under Slurm.
const ofSlurm = `#!/bin/bash
#SBATCH --job-name=slurm-train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-task=1
#SBATCH --mem=600
#SBATCH --time=00:10:00
#SBATCH --output=%x.out
#SBATCH --mail-type=END

nodes=( $(scontrol show hostnames "$SLURM_JOB_NODELIST") )
head_node=${nodes[0]}
export MASTER_ADDR=$(srun --nodes=1 --ntasks=1 -w "$head_node" hostname -I | cut -d' ' -f1) MASTER_PORT=29777
echo "nodes=${#nodes[@]} tasks=$SLURM_NTASKS arg=$1 head=$MASTER_ADDR"
export OMP_NUM_THREADS=1
srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS; echo "sees=$CUDA_VISIBLE_DEVICES on $SLURM_NODEID"; exec python3 train.py 0'
srun -l --ntasks-per-node=1 sh -c 'exit $((SLURM_PROCID*7))'
echo "worst=$?"
`

// scriptOfSlurm: a script for sbatch runs as it is, its srun starts ranks on both nodes, and they train together.
func scriptOfSlurm(t *testing.T, c *cluster) {
	if err := os.WriteFile(filepath.Join(c.dir, "slurm.sh"), []byte(ofSlurm), 0o755); err != nil {
		t.Fatal(err)
	}
	at := time.Now()
	out, err := c.muster("sbatch", "slurm.sh", "the argument")
	m := regexp.MustCompile(`Submitted batch job (\S+)\n`).FindStringSubmatch(out)
	if err != nil || m == nil || !strings.Contains(out, "Nothing stands for --mail-type: left out") {
		t.Fatalf("%v\n%s", err, out)
	}
	if err := os.Remove(filepath.Join(c.dir, "slurm.sh")); err != nil { // it is kept with the job
		t.Fatal(err)
	}
	said := c.ended(m[1], 120*time.Second)
	errs, _ := c.muster("job", "logs", "-all", "-stderr", m[1])
	if !strings.Contains(said, "nodes=2 tasks=4 arg=the argument head="+c.net.Host("n1").IP[:3]) || !strings.Contains(said, "worst=7\n") || !regexp.MustCompile(`srun: error: n\d: task 1: Exited with exit code 7\n`).MatchString(errs) {
		t.Errorf("%s\n%s", said, errs)
	}
	if sums := figures(said, "sum"); len(sums) != 4 || slices.Min(sums) != 10 || slices.Max(sums) != 10 {
		t.Errorf("sums %v of four ranks, want 10 each:\n%s\n%s", sums, said, errs)
	}
	shown := map[string]bool{} // no two ranks see one GPU
	for _, s := range regexp.MustCompile(`sees=([^,\s]+) on (\d)\n`).FindAllStringSubmatch(said, -1) {
		shown[s[1]+" on "+s[2]] = true
	}
	if len(shown) != 4 {
		t.Errorf("GPUs that the ranks see: %v\n%s", shown, said)
	}
	t.Logf("first barrier %.2f s after submission", slices.Max(figures(said, "barrier"))-float64(at.UnixMicro())/1e6)
	if b, err := os.ReadFile(filepath.Join(c.dir, "slurm-train.out")); err != nil || !strings.Contains(string(b), "worst=7") {
		t.Errorf("the file of --output: %v\n%s", err, b)
	}

	// An array whose ids do not begin at 0, after the first job; and srun outside of a job.
	out, err = c.muster("sbatch", "--parsable", "-d", "afterok:"+m[1], "-a", "2-6:2%1", "--wrap", "echo id=$SLURM_ARRAY_TASK_ID; [ $SLURM_ARRAY_JOB_ID -gt 0 ] && [ $SLURM_JOB_ID -gt $SLURM_ARRAY_JOB_ID ]")
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	id := strings.TrimSpace(out)
	if out, err = c.muster("job", "wait", id); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err = c.muster("job", "logs", "-all", "-stdout", id)
	for _, n := range []int{2, 4, 6} {
		if err != nil || !strings.Contains(out, "id="+strconv.Itoa(n)+"\n") {
			t.Errorf("%v\n%s", err, out)
		}
	}
	if out, err := c.muster("srun", "-N2", "-n", "4", "sh", "-c", "[ $RANK = 3 ] || exit 0; echo rank 3; exit 4"); fmt.Sprint(err) != "exit status 4" || !strings.Contains(out, "rank 3\n") {
		t.Errorf("%v\n%s", err, out)
	}
}
