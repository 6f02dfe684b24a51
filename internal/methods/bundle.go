package methods

// Requests and responses about bundles (structs.BundleMax). The namespace is that of the call, except between servers.
type (
	// BundlePutRequest begins to send a bundle.
	BundlePutRequest struct {
		Sum  string
		Size int64
	}
	// BundleRequest names a bundle.
	BundleRequest struct{ Sum string }
	// BundleResponse describes a bundle.
	BundleResponse struct {
		Size   int64
		Copies int // of a bundle that was just sent: how many servers have it
	}
	// ServerBundleRequest names a bundle between servers.
	ServerBundleRequest struct{ Namespace, Sum string }
)
