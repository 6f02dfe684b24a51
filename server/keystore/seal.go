package keystore

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"

	"github.com/muster-sched/muster/internal/rpc"
	"github.com/muster-sched/muster/structs"
)

// sealFormat is the first byte of sealed data: AES-256-GCM with a nonce of 12 random bytes before the ciphertext.
// Namespace and path are authenticated, so that sealed items cannot be moved to another variable. One key is good for
// 2^32 writes, which no cluster reaches.
const sealFormat = 1

func sealedName(namespace, path string) []byte { return []byte(namespace + "\x00" + path) }

func sealCipher(key []byte) (cipher.AEAD, error) {
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	return cipher.NewGCM(b)
}

// Seal encrypts the items of a variable.
func Seal(key []byte, namespace, path string, items map[string]string) ([]byte, error) {
	plain, err := rpc.Encode(items)
	if err != nil {
		return nil, err
	}
	return sealBytes(key, namespace, path, plain)
}

// sealBytes encrypts bytes for unsealBytes.
func sealBytes(key []byte, namespace, path string, plain []byte) ([]byte, error) {
	c, err := sealCipher(key)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 1+c.NonceSize(), 1+c.NonceSize()+len(plain)+c.Overhead())
	out[0] = sealFormat
	rand.Read(out[1:]) // never fails
	return c.Seal(out, out[1:], plain, sealedName(namespace, path)), nil
}

// Unseal decrypts the items of a variable.
func Unseal(key []byte, v *structs.Variable) (map[string]string, error) {
	plain, err := unsealBytes(key, v)
	if err != nil {
		return nil, err
	}
	var items map[string]string
	if err := rpc.Decode(plain, &items); err != nil {
		return nil, structs.Errorf(structs.CodeInternal, "variable %q: %v", v.Path, err)
	}
	return items, nil
}

// unsealBytes decrypts a variable into the bytes that sealBytes was given.
func unsealBytes(key []byte, v *structs.Variable) ([]byte, error) {
	c, err := sealCipher(key)
	if err != nil {
		return nil, err
	}
	n := c.NonceSize()
	if len(v.Sealed) < 1+n || v.Sealed[0] != sealFormat {
		return nil, structs.Errorf(structs.CodeInternal, "variable %q is sealed in a way that this version does not know", v.Path)
	}
	plain, err := c.Open(nil, v.Sealed[1:1+n], v.Sealed[1+n:], sealedName(v.Namespace, v.Path))
	if err != nil {
		return nil, structs.Errorf(structs.CodeInternal, "variable %q of namespace %q was changed outside of its servers, or sealed with another key", v.Path, v.Namespace)
	}
	return plain, nil
}
