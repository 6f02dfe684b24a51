package gpu

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Wires is the state of a GPU's links to other devices: PCIe and NVLink. It is read less often than the rest. What the
// driver does not report is -1.
type Wires struct {
	PCIeTxKBs, PCIeRxKBs int64 // now
	PCIeReplays          int64 // packets sent again, since the driver was loaded
	Up, Down             []int // NVLinks by number; down includes unconnected ones
	NVLinkKiB            int64 // data sent and received over all of them, since the driver was loaded
	CRCFlit, CRCData     int64 // checksum errors of all of them, since the driver was loaded
	Replays, Recoveries  int64 // sent again; trained again

	NVLinkMBs int64 `json:",omitempty"` // NVLinkKiB per second, in thousands, since the previous measurement; added by the agent
	at        time.Time
}

// When link errors degrade a GPU. A retransmission now and then is not a fault.
const (
	wireLooks     = 3 // consecutive measurements with new errors that the link itself corrects
	replaysMinute = 8 // PCIe retransmissions in one minute
)

// wiring is the history of a GPU's links.
type wiring struct {
	last    *Wires
	upOnce  map[int]bool // NVLinks that have been up
	peers   int          // the most active links of similar GPUs on this machine; 0: there are none
	errors  int          // consecutive measurements with new errors
	replays int64        // PCIe retransmissions at the beginning of the minute
	minute  time.Time
}

// wires records a measurement of a GPU's links.
func (h *health) wires(w *Wires, now time.Time) {
	v := &h.wiring
	last := v.last
	v.last = w
	if v.upOnce == nil {
		v.upOnce = map[int]bool{}
	}
	for _, l := range w.Up {
		v.upOnce[l] = true
	}
	if w.PCIeReplays >= 0 {
		if v.minute.IsZero() || w.PCIeReplays < v.replays {
			v.minute, v.replays = now, w.PCIeReplays
		} else if now.Sub(v.minute) >= time.Minute {
			if n := w.PCIeReplays - v.replays; n*int64(time.Minute) > replaysMinute*int64(now.Sub(v.minute)) {
				h.soft, h.softAt = fmt.Sprintf("PCIe sends packets again: %d in %s", n, now.Sub(v.minute).Round(time.Second)), now
			}
			v.minute, v.replays = now, w.PCIeReplays
		}
	}
	if last == nil {
		return
	}
	if n := grown(last.Recoveries, w.Recoveries); n > 0 {
		h.soft, h.softAt = fmt.Sprintf("NVLink had to be trained again, %d times", n), now
		return
	}
	n := grown(last.CRCFlit, w.CRCFlit) + grown(last.CRCData, w.CRCData) + grown(last.Replays, w.Replays)
	if n == 0 {
		v.errors = 0
	} else if v.errors++; v.errors >= wireLooks {
		h.soft, h.softAt = fmt.Sprintf("NVLink has errors again and again, %d since the last look", n), now
	}
}

// grown returns the increase of a counter; 0 if it is unknown or was reset.
func grown(was, now int64) int64 {
	if was < 0 || now < was {
		return 0
	}
	return now - was
}

// down names the NVLinks that are down and should be up, or returns "".
func (v *wiring) down() string {
	if v.last == nil {
		return ""
	}
	var gone []string
	for _, l := range v.last.Down {
		if v.upOnce[l] {
			gone = append(gone, strconv.Itoa(l))
		}
	}
	if len(gone) > 0 {
		return fmt.Sprintf("NVLink %s is down: %d of %d are up", strings.Join(gone, ", "), len(v.last.Up), max(len(v.last.Up)+len(gone), v.peers))
	}
	if n := len(v.last.Up); n < v.peers {
		return fmt.Sprintf("%d of its NVLinks are up, GPUs like it here have %d", n, v.peers)
	}
	return ""
}

// alike records, per model, the most active NVLinks to switches: all such GPUs should have the same number. The caller
// holds mu.
func (n *NVIDIA) alike() {
	most := map[string]int{}
	of := func(g *Device) (*Wires, bool) {
		s, ok := n.samples[g.UUID]
		return s.Wires, ok && s.Wires != nil && !s.Lost && s.MIGMode != "Enabled" && slices.ContainsFunc(g.Links, func(l Link) bool { return l.Switch })
	}
	for i := range n.snapshot.GPUs {
		if w, ok := of(&n.snapshot.GPUs[i]); ok {
			most[n.snapshot.GPUs[i].Name] = max(most[n.snapshot.GPUs[i].Name], len(w.Up))
		}
	}
	for i := range n.snapshot.GPUs {
		g := &n.snapshot.GPUs[i]
		if s, ok := n.samples[g.UUID]; ok && s.Wires != nil {
			n.of(g.UUID).wiring.peers = most[g.Name]
		}
	}
}

// joined returns a GPU's current links with the previous values filled in; nil without either.
func joined(w, last *Wires, now time.Time) *Wires {
	if w == nil {
		return last
	}
	w.at = now
	// Sums over the active links are incomparable when a link has come or gone: its count is that of its whole life.
	if last != nil && last.NVLinkKiB >= 0 && w.NVLinkKiB >= last.NVLinkKiB && slices.Equal(w.Up, last.Up) {
		if ms := now.Sub(last.at).Milliseconds(); ms > 0 {
			w.NVLinkMBs = (w.NVLinkKiB - last.NVLinkKiB) / ms
		}
	}
	return w
}
