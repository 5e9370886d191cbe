package remote

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	. "github.com/onsi/gomega"
	"github.com/pkg/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/latchkey-dev/latchkey/test/support/testenv"
)

// removeNamespace removes a namespace with what the guide creates in it, which no controller does
// here.
func removeNamespace(ctx context.Context, env *testenv.Env, name string) error {
	for _, args := range [][]string{
		{"delete", "serviceaccounts,roles,rolebindings", "--all", "--namespace", name},
		{"delete", "namespace", name, "--wait=false"},
	} {
		if output, err := env.Kubectl(ctx, args...); err != nil {
			return errors.Wrap(err, output)
		}
	}
	clients, err := kubernetes.NewForConfig(env.Config())
	if err != nil {
		return err
	}
	namespace, err := clients.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	namespace.Spec.Finalizers = nil
	_, err = clients.CoreV1().Namespaces().Finalize(ctx, namespace, metav1.UpdateOptions{})
	return err
}

// The commands of docs/guide-remote.md, in order: hub is host, and spoke is second.
func TestGuide(t *testing.T) {
	g := NewWithT(t)
	ctx, dir := t.Context(), t.TempDir()
	g.Expect(second.SetAuthenticationConfig("")).To(Succeed()) // knows nothing of host
	t.Cleanup(func() { g.Expect(setTrust(context.Background(), second, derived(second))).To(Succeed()) })
	merged := clientcmdapi.NewConfig()
	for name, env := range map[string]*testenv.Env{"hub": &host, "spoke": second} {
		config := env.Config()
		merged.Clusters[name] = &clientcmdapi.Cluster{Server: config.Host, CertificateAuthorityData: config.CAData}
		merged.AuthInfos[name] = &clientcmdapi.AuthInfo{
			ClientCertificateData: config.CertData,
			ClientKeyData:         config.KeyData,
		}
		merged.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	g.Expect(clientcmd.WriteToFile(*merged, kubeconfig)).To(Succeed())
	build := exec.CommandContext(ctx, "go", "build", "-o", filepath.Join(dir, "latchkey"), "../../../cmd/latchkey")
	output, err := build.CombinedOutput()
	g.Expect(err).NotTo(HaveOccurred(), string(output))

	page, err := os.ReadFile("../../../docs/guide-remote.md")
	g.Expect(err).NotTo(HaveOccurred())
	var done []string
	run := func(block string) (string, error) {
		t.Helper()
		// Each block is run in a shell that has the variables of those before.
		script := strings.Join(append(done, block, "declare -p SPOKE AUDIENCE ISSUER > variables 2> /dev/null || true"), "\n")
		shell := exec.CommandContext(ctx, "bash", "-euo", "pipefail", "-c", script)
		shell.Dir = dir
		shell.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "PATH="+dir+":"+host.Programs()+":"+os.Getenv("PATH"))
		output, err := shell.CombinedOutput()
		if variables, err := os.ReadFile(filepath.Join(dir, "variables")); err == nil {
			done = []string{string(variables)}
		}
		return string(output), err
	}
	t.Cleanup(func() {
		_, err := host.Kubectl(context.Background(), "delete", "clusterrolebinding", "issuer-documents")
		g.Expect(err).NotTo(HaveOccurred())
		for _, env := range []*testenv.Env{&host, second} {
			g.Expect(removeNamespace(context.Background(), env, "shop")).To(Succeed())
		}
	})
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	g.Expect(blocks).To(HaveLen(5))
	for i, block := range blocks {
		if i == len(blocks)-1 {
			break
		}
		output, err := run(block[1])
		g.Expect(err).NotTo(HaveOccurred(), output)
	}
	last := blocks[len(blocks)-1][1]
	refused, err := run(last)
	g.Expect(err).To(HaveOccurred(), "the spoke does not have the file yet")
	g.Expect(refused).To(ContainSubstring("FAILED the target accepts the token"))
	authentication, err := os.ReadFile(filepath.Join(dir, "authentication.yaml"))
	g.Expect(err).NotTo(HaveOccurred())
	g.Expect(second.SetAuthenticationConfig(string(authentication))).To(Succeed())
	var report string
	g.Eventually(func() error {
		report, err = run(last)
		return err
	}).WithTimeout(patience).Should(Succeed(), func() string { return report })
	g.Expect(report).To(ContainSubstring(`it states the name "hub:system:serviceaccount:shop:deployer", as expected`))
}
