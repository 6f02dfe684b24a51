package main

import (
	"os"
	"path/filepath"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // the formats register themselves
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm"
)

// pack writes the Debian or RPM package of an architecture.
func (d *dist) pack(format, bin, goarch string) error {
	own := func(name string) string { return filepath.Join(d.root, "dist/files", name) }
	var contents files.Contents
	add := func(source, dest, kind string, mode os.FileMode) {
		contents = append(contents, &files.Content{Source: source, Destination: dest, Type: kind,
			FileInfo: &files.ContentFileInfo{Owner: "root", Group: "root", Mode: mode, MTime: d.time}})
	}
	add(bin, "/usr/bin/muster", files.TypeFile, 0o755)
	add(own("muster.service"), "/usr/lib/systemd/system/muster.service", files.TypeFile, 0o644)
	add("", "/etc/muster.d", files.TypeDir, 0o750) // gossip key, keys of certificates
	add(own("muster.hcl"), "/etc/muster.d/muster.hcl", files.TypeConfigNoReplace, 0o640)
	add("", "/var/lib/muster", files.TypeDir, 0o711) // users reach the socket in it
	add(own("server-only.conf"), "/usr/share/doc/muster/server-only.conf", files.TypeFile, 0o644)
	add(filepath.Join(d.root, "CHANGELOG.md"), "/usr/share/doc/muster/CHANGELOG.md", files.TypeFile, 0o644)
	license := "/usr/share/doc/muster/copyright"
	if format == "rpm" {
		license = "/usr/share/licenses/muster/LICENSE"
	}
	add(filepath.Join(d.root, "LICENSE"), license, files.TypeFile, 0o644)
	for from, to := range map[string]string{
		"muster.bash": "/usr/share/bash-completion/completions/muster", "_muster": "/usr/share/zsh/vendor-completions/_muster",
		"muster.fish": "/usr/share/fish/vendor_completions.d/muster.fish",
	} {
		if format == "rpm" && from == "_muster" {
			to = "/usr/share/zsh/site-functions/_muster"
		}
		add(filepath.Join(d.docs, "completions", from), to, files.TypeFile, 0o644)
	}
	pages, err := filesBelow(filepath.Join(d.docs, "man"))
	if err != nil {
		return err
	}
	for _, p := range pages {
		add(filepath.Join(d.docs, "man", p), "/usr/share/man/man1/"+p, files.TypeFile, 0o644)
	}
	info := &nfpm.Info{
		Name: "muster", Arch: goarch, Platform: "linux", Version: d.version, Release: "1", Section: "admin", Priority: "optional",
		Maintainer: d.publisher, License: "Apache-2.0", MTime: d.time, DisableGlobbing: true,
		Description: "Cluster scheduler for GPU work\nQueues, shares, places and runs jobs on many machines. One program is server, client\nand command line.",
		Overridables: nfpm.Overridables{
			Contents: contents,
			Scripts:  nfpm.Scripts{PostInstall: own("reload.sh"), PreRemove: own("deb-prerm.sh"), PostRemove: own("deb-postrm.sh")},
			Depends:  []string{"libc6 (>= " + glibc + ")"},
		},
	}
	if format == "rpm" {
		info.Scripts.PreRemove, info.Scripts.PostRemove = own("rpm-preun.sh"), own("reload.sh")
		info.Depends = []string{"glibc >= " + glibc}
		info.RPM.BuildHost, info.RPM.Summary = "localhost", "Cluster scheduler for GPU work"
	}
	info = nfpm.WithDefaults(info)
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(d.out, packager.ConventionalFileName(info)))
	if err != nil {
		return err
	}
	if err := packager.Package(info, f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
