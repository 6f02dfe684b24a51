package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/muster-sched/muster/internal/tlsutil"
)

func newTLS(e *env) *cobra.Command {
	return e.group("tls", "Make certificates for agents and people", "", `
muster tls ca create
muster tls cert create -server -region global
muster tls cert create -client
muster tls cert create -cli`,
		func(e *env) *cobra.Command {
			return e.group("ca", "The authority that signs certificates", "", `muster tls ca create`, newTLSCACreate)
		},
		func(e *env) *cobra.Command {
			return e.group("cert", "Certificates signed by it", "", `muster tls cert create -server`, newTLSCertCreate)
		})
}

type tlsCAOptions struct {
	*env
	form               format
	days               int
	commonName, domain string
}

func newTLSCACreate(e *env) *cobra.Command {
	o := &tlsCAOptions{env: e}
	c := e.verb("create [options]", "Make a certificate authority", "Make a certificate authority and write it to muster-agent-ca.pem and muster-agent-ca-key.pem here. Agents need the first; keep the second safe, away from them.", `
muster tls ca create
muster tls ca create -days 730 -common-name "Muster CA of the lab"`, 0, 0, o.run)
	o.form.flags(c)
	c.Flags().IntVar(&o.days, "days", 1825, "how long it is valid")
	c.Flags().StringVar(&o.commonName, "common-name", "", "its name")
	c.Flags().StringVar(&o.domain, "domain", "muster", "beginning of the file names")
	return c
}

const day = 24 * time.Hour

func (o *tlsCAOptions) run(context.Context, []string) error {
	if o.days < 1 || o.days > 36500 {
		return fmt.Errorf("-days %d: want 1 to 36500", o.days)
	}
	pair, err := tlsutil.NewCA(tlsutil.CAOptions{CommonName: o.commonName, ValidFor: time.Duration(o.days) * day, Now: o.now()})
	if err != nil {
		return err
	}
	cert, key := o.domain+"-agent-ca.pem", o.domain+"-agent-ca-key.pem"
	if err := pair.Write(cert, key); err != nil {
		return err
	}
	return o.wrote(&o.form, "CA", cert, key)
}

// wrote prints which files were written.
func (e *env) wrote(f *format, what, cert, key string) error {
	if done, err := f.done(e, map[string]string{"Certificate": cert, "Key": key}); done || err != nil {
		return err
	}
	e.printf("%s certificate saved to %s\n", what, cert)
	e.printf("%s key saved to %s\n", what, key)
	return nil
}

type tlsCertOptions struct {
	*env
	form                format
	server, client, cli bool
	days                int
	ca, key, domain     string
	dns, ips            []string
}

func newTLSCertCreate(e *env) *cobra.Command {
	o := &tlsCertOptions{env: e}
	c := e.verb("create [options]", "Make a certificate", "Make a certificate for a server, a client agent or a person's tools and write it here, to REGION-ROLE-muster.pem and REGION-ROLE-muster-key.pem.", `
muster tls cert create -server -region global -additional-ipaddress 10.0.0.2
muster tls cert create -client -additional-dnsname gpu-07.lab
muster tls cert create -cli -days 30`, 0, 0, o.run)
	o.form.flags(c)
	f := c.Flags()
	f.BoolVar(&o.server, "server", false, "for a server")
	f.BoolVar(&o.client, "client", false, "for a client agent")
	f.BoolVar(&o.cli, "cli", false, "for a person's tools")
	f.IntVar(&o.days, "days", 365, "how long it is valid")
	// -region is a flag of every command; here it is the region of the certificate.
	f.StringVar(&o.ca, "ca", "", "certificate of the CA (DOMAIN-agent-ca.pem)")
	f.StringVar(&o.key, "key", "", "key of the CA (DOMAIN-agent-ca-key.pem)")
	f.StringVar(&o.domain, "domain", "muster", "domain of the file names")
	f.StringArrayVar(&o.dns, "additional-dnsname", nil, "a further name it is valid for; may be repeated")
	f.StringArrayVar(&o.ips, "additional-ipaddress", nil, "a further address it is valid for; may be repeated")
	return c
}

func (o *tlsCertOptions) run(context.Context, []string) error {
	if b2i(o.server)+b2i(o.client)+b2i(o.cli) != 1 {
		return errors.New("give one of -server, -client and -cli")
	}
	if o.days < 1 || o.days > 36500 {
		return fmt.Errorf("-days %d: want 1 to 36500", o.days)
	}
	caCert, caKey := o.ca, o.key
	if caCert == "" {
		caCert = o.domain + "-agent-ca.pem"
	}
	if caKey == "" {
		caKey = o.domain + "-agent-ca-key.pem"
	}
	ca, err := tlsutil.Read(caCert, caKey)
	if err != nil {
		return fmt.Errorf("read the CA: %w (muster tls ca create makes one; -ca and -key name another)", err)
	}
	role := tlsutil.RoleServer
	switch {
	case o.client:
		role = tlsutil.RoleClient
	case o.cli:
		role = tlsutil.RoleCLI
	}
	region := o.region
	if region == "" {
		region = "global"
	}
	pair, err := tlsutil.NewCert(ca, tlsutil.CertOptions{Role: role, Region: region, Extra: append(append([]string{}, o.dns...), o.ips...), ValidFor: time.Duration(o.days) * day, Now: o.now()})
	if err != nil {
		return err
	}
	base := fmt.Sprintf("%s-%s-%s", region, role, o.domain)
	// Further certificates of the same role are numbered.
	for n := 0; ; n++ {
		name := base
		if n > 0 {
			name = fmt.Sprintf("%s-%d", base, n)
		}
		if n > 10_000 {
			return fmt.Errorf("there are too many %s*.pem here", base)
		}
		if _, err := os.Lstat(name + ".pem"); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := pair.Write(name+".pem", name+"-key.pem"); err != nil {
			return err
		}
		if n > 0 && role != tlsutil.RoleCLI {
			o.hint("Copy it to its machine as %s.pem, the name in the configuration there", base)
		}
		return o.wrote(&o.form, map[tlsutil.Role]string{tlsutil.RoleServer: "Server", tlsutil.RoleClient: "Client", tlsutil.RoleCLI: "Cli"}[role], name+".pem", name+"-key.pem")
	}
}
