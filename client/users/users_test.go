package users

import (
	"errors"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"
)

func TestRemembersForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var k kept[int]
		asked := 0
		ask := func() (int, error) { asked++; return asked, nil }
		want := func(value, times int) {
			t.Helper()
			if v, err := k.get("a", ask); err != nil || v != value || asked != times {
				t.Errorf("answer %d, %v after %d questions; want %d after %d", v, err, asked, value, times)
			}
		}
		want(1, 1)
		time.Sleep(memory - time.Millisecond)
		want(1, 1)
		time.Sleep(time.Millisecond)
		want(2, 2)
		no := errors.New("no")
		for range 2 {
			if _, err := k.get("b", func() (int, error) { asked++; return 0, no }); err != no {
				t.Errorf("a refusal is told as %v", err)
			}
		}
		want(2, 4) // refusals are asked for again
		for i := range most {
			k.get(strconv.Itoa(i), func() (int, error) { return 0, nil })
		}
		if n := len(k.answers); n > most {
			t.Errorf("%d answers are kept, the bound is %d", n, most)
		}
	})
}

func TestLookup(t *testing.T) {
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		u, err := Lookup(me.Username)
		if err != nil || u.Uid != me.Uid {
			t.Errorf("%q: %+v, %v; want u.Uid = %v", me.Username, u, err, me.Uid)
		}
		if u, err = LookupID(me.Uid); err != nil || u.Username != me.Username {
			t.Errorf("%s: %+v, %v; want u.Username = %v", me.Uid, u, err, me.Username)
		}
		want, werr := me.GroupIds()
		if got, err := Groups(me); !slices.Equal(got, want) || (err == nil) != (werr == nil) {
			t.Errorf("groups %v, %v; want %v", got, err, want)
		}
		if _, err := Lookup("nobody-is-called-that"); err == nil {
			t.Error("a user that does not exist was found")
		}
	}
}

func TestHome(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	me, other := strconv.Itoa(os.Geteuid()), strconv.Itoa(os.Geteuid()+1)
	for _, c := range []struct{ dir, uid, want string }{{dir, me, dir}, {dir, other, ""}, {file, me, ""}, {filepath.Join(dir, "none"), me, ""}, {"", me, ""}} {
		if got := Home(&user.User{HomeDir: c.dir, Uid: c.uid}); got != c.want {
			t.Errorf("%q of user %s: %q", c.dir, c.uid, got)
		}
	}
}
