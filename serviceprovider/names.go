package serviceprovider

import (
	"crypto/sha3"
	"encoding/base32"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// maxName is the length of the longest name and label value.
const maxName = 63

// requestName returns the name of an object's request: "<controller>--<name>--<suffix>". A longer
// name than maxName is shortened with a hash.
func requestName(controllerName, objectName, suffix string) string {
	name := strings.ToLower(controllerName + "--" + objectName)
	return shorten(name, maxName-len("--")-len(suffix)) + "--" + suffix
}

// tenantNamespace returns the namespace on the platform cluster for the requests about an object:
// "mcp--" and a UUID of version 8 made from a hash of "namespace/name".
func tenantNamespace(object client.ObjectKey) string {
	id := sha3.SumSHAKE128([]byte(object.Namespace+"/"+object.Name), 16)
	id[6] = id[6]&0x0f | 0x80 // version 8
	id[8] = id[8]&0x3f | 0x80 // the variant of RFC 9562
	return fmt.Sprintf("mcp--%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// shorten returns the text, or its beginning and a hash of the whole if the text is longer than
// limit. The result ends with no separator, and is valid wherever the text is.
func shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	hash := base32.NewEncoding(alphabet).WithPadding(base32.NoPadding).EncodeToString(sha3.SumSHAKE128([]byte(text), 5))
	return strings.TrimRight(text[:limit-len("--")-len(hash)], "-.") + "--" + hash
}
