package nomadapi

import _ "github.com/hashicorp/nomad/api"
