package agentconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCheckMachine: a command that cannot be run is reported with file, line and key by the agent, but not by the check
// of files for other machines.
func TestCheckMachine(t *testing.T) {
	dir := t.TempDir()
	program := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	good := program("good", "#!/bin/sh\n", 0o755)
	link := filepath.Join(dir, "link")
	if err := os.Symlink(filepath.Join(dir, "gone"), link); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		path, want string
	}{
		"a script":                   {good, ""},
		"a program":                  {"/bin/sh", ""},
		"one without a first line":   {program("plain", "exit 0", 0o755), ""},
		"an empty first line":        {program("empty", "#!\n", 0o755), ""},
		"no file":                    {filepath.Join(dir, "gone"), "no such file or directory"},
		"a link to nothing":          {link, "no such file or directory"},
		"below a file":               {filepath.Join(good, "x"), "not a directory"},
		"a directory":                {dir, "it is a directory"},
		"a device":                   {"/dev/null", "it is not a file"},
		"not executable":             {program("mode", "#!/bin/sh\n", 0o644), "it is not executable (mode 0644)"},
		"a missing interpreter":      {program("python", "#! /opt/none/python3 -u\n", 0o755), `its interpreter "/opt/none/python3": no such file or directory`},
		"lines that end as on a DOS": {program("dos", "#!/bin/sh\r\nexit 0\r\n", 0o755), `its interpreter "/bin/sh\r": no such file or directory`},
	} {
		for _, key := range []string{"client.hooks.prolog.command", "client.hooks.epilog.command", "client.hooks.health.command", "client.gpu_pressure.command.command"} {
			t.Run(name+"/"+key, func(t *testing.T) {
				parts := strings.Split(key, ".")
				file := filepath.Join(t.TempDir(), "client.hcl")
				text := fmt.Sprintf("data_dir = %q\nclient {\n  enabled = true\n  servers = [\"127.0.0.1:4647\"]\n  %s {\n    %s {\n      command = [%q]\n    }\n  }\n}\n", dir, parts[1], parts[2], c.path)
				if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				cfg, err := Load(Options{Paths: []string{file}})
				if err != nil {
					t.Fatal(err)
				}
				err = cfg.CheckMachine()
				if c.want == "" {
					if err != nil {
						t.Error(err)
					}
					return
				}
				want := fmt.Sprintf("%s:7:7: %s: %q cannot be run on this machine: %s\n", file, key, c.path, c.want)
				if err == nil || !strings.HasPrefix(err.Error()+"\n", want) {
					t.Errorf("%v\nwant\n%s", err, want)
				}
				cfg.Client.Enabled = false
				if err := cfg.CheckMachine(); err != nil {
					t.Errorf("a server minds the hooks of clients: %v", err)
				}
			})
		}
	}
}
