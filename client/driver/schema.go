package driver

import (
	"fmt"
	"strings"

	"github.com/muster-sched/muster/internal/driverconf"
)

// Values is a config block that has been checked against its schema. Getters return the zero value of an absent key.
type Values = driverconf.Values

// Schema is the keys that a driver's config block accepts.
type Schema driverconf.Schema

// Decode checks config against the schema and converts its values. The error has every problem; no other attempt cures
// it. driver is the prefix of the message.
func (s Schema) Decode(driver string, config map[string]any) (Values, error) {
	v, problems := driverconf.Schema(s).Decode(config)
	if len(problems) == 0 {
		return v, nil
	}
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Text
	}
	return nil, Permanent(fmt.Errorf("%s: %s", driver, strings.Join(texts, "; ")))
}
