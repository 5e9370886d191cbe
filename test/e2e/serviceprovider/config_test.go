package serviceprovider

import (
	"context"
	"testing"

	. "github.com/onsi/gomega"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/latchkey-dev/latchkey/examples/serviceprovider/v1alpha1"
)

// domain returns the domain in an object's ConfigMap on the remote cluster.
func domain(t *testing.T, object client.Object) func() string {
	t.Helper()
	return func() string {
		found := content(object.GetName())
		if err := remote.Get(t.Context(), client.ObjectKeyFromObject(found), found); err != nil {
			return string(apierrors.ReasonForError(err))
		}
		return found.Data["domain"]
	}
}

func withoutConfig(o *options) { o.config = nil }

func TestConfig(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s, withoutConfig)
	m := order(t, "config")
	eventually(t, status(m)).Should(Equal("Progressing ProviderConfigMissing: there is no ProviderConfig"))
	g.Expect(onboarding.Get(t.Context(), client.ObjectKeyFromObject(m), m)).To(Succeed())
	g.Expect(m.Finalizers).To(BeEmpty())
	second := order(t, "config-second")

	setConfig(t, p.name, v1alpha1.ProviderConfigSpec{Domain: "first"})
	isReady(t, m)
	isReady(t, second)
	g.Expect(domain(t, m)()).To(Equal("first"))

	before := s.settled(t, "createOrUpdate", m)
	setConfig(t, p.name+"-other", v1alpha1.ProviderConfigSpec{Domain: "other"})
	barrier(t, "config")
	g.Expect(s.count("createOrUpdate", m)).To(Equal(before), "a config of another name triggers nothing")
	setConfig(t, p.name, v1alpha1.ProviderConfigSpec{Domain: "second"})
	eventually(t, domain(t, m)).Should(Equal("second"))
	eventually(t, domain(t, second)).Should(Equal("second"), "all objects")
	errors := reconcileErrors(t, p.name)

	config := &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Name: p.name}}
	edit(t, platform, config, func(c *v1alpha1.ProviderConfig) { c.Finalizers = []string{"example.com/hold"} })
	g.Expect(platform.Delete(t.Context(), config)).To(Succeed())
	eventually(t, status(m)).Should(Equal("Progressing ProviderConfigDeleting: the ProviderConfig is being deleted"))
	edit(t, platform, config, func(c *v1alpha1.ProviderConfig) { c.Finalizers = nil })
	eventually(t, status(m)).Should(Equal("Progressing ProviderConfigMissing: there is no ProviderConfig"))

	g.Expect(reconcileErrors(t, p.name)).To(Equal(errors), "no error loop")
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, status(m)).Should(Equal("Terminating ProviderConfigMissing: there is no ProviderConfig"))
	g.Expect(s.count("delete", m)).To(BeZero())
	setConfig(t, p.name, v1alpha1.ProviderConfigSpec{Domain: "third"})
	eventually(t, status(m)).Should(Equal("NotFound"), "a config that arrives reconciles objects in deletion, too")
}

// The config goes away, and comes back, while Delete has not ended.
func TestConfigWhileDeleting(t *testing.T) {
	g := NewWithT(t)
	stages := &gate{}
	s := heldService(t, stages)
	p := start(t, s)
	m := order(t, "config-deleting")
	isReady(t, m)
	g.Expect(onboarding.Delete(t.Context(), m)).To(Succeed())
	eventually(t, func() int { return s.count("delete", m) }).Should(BeNumerically(">", 0))
	g.Expect(platform.Delete(t.Context(), &v1alpha1.ProviderConfig{ObjectMeta: metav1.ObjectMeta{Name: p.name}})).
		To(Succeed())
	eventually(t, status(m)).Should(Equal("Terminating ProviderConfigMissing: there is no ProviderConfig"))
	stages.set(stageDomain, true)
	setConfig(t, p.name, defaultConfig)
	eventually(t, status(m)).Should(Equal("NotFound"))
}

// A process that starts while its objects are ready does not say otherwise until it has a config.
func TestRestartKeepsReady(t *testing.T) {
	g := NewWithT(t)
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s)
	m := order(t, "restart")
	isReady(t, m)
	before := len(sent(t, onboarding, p.name, "patch", "mailboxes/status", m.Name))
	p.stop()
	s = &service[*v1alpha1.Mailbox]{}
	startAs(t, p.name, s)
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(BeNumerically(">", 0))
	barrier(t, "restart")
	g.Expect(sent(t, onboarding, p.name, "patch", "mailboxes/status", m.Name)).To(HaveLen(before))
}

func TestSecretWatcher(t *testing.T) {
	g := NewWithT(t)
	create := func(namespace, name string) *corev1.Secret {
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		g.Expect(platform.Create(t.Context(), secret)).To(Succeed())
		t.Cleanup(func() { g.Expect(client.IgnoreNotFound(platform.Delete(context.Background(), secret))).To(Succeed()) })
		return secret
	}
	for _, namespace := range []string{"provider-secrets", "other-secrets"} {
		g.Expect(client.IgnoreAlreadyExists(platform.Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
	}
	change := func(secret *corev1.Secret) {
		edit(t, platform, secret, func(s *corev1.Secret) {
			s.Data = map[string][]byte{"n": append(s.Data["n"], 'x')}
		})
	}
	referenced, other, elsewhere := create("provider-secrets", "referenced"), create("provider-secrets", "other"),
		create("other-secrets", "referenced")
	s := &service[*v1alpha1.Mailbox]{}
	p := start(t, s, func(o *options) {
		o.config.SecretName = "referenced"
		o.secretNamespace = "provider-secrets"
		o.isReferenced = func(secret *corev1.Secret, config *v1alpha1.ProviderConfig) bool {
			if config == nil {
				return false // before the first config arrives
			}
			return secret.Name == config.Spec.SecretName
		}
	})
	m, second := order(t, "secret"), order(t, "secret-second")
	isReady(t, m)
	isReady(t, second)
	count := func() int { return s.count("createOrUpdate", m) }
	before, beforeSecond := s.settled(t, "createOrUpdate", m), s.settled(t, "createOrUpdate", second)
	change(other)
	change(elsewhere)
	barrier(t, "secret")
	g.Expect(count()).To(Equal(before), "neither another Secret nor another namespace")
	change(referenced)
	eventually(t, count).Should(BeNumerically(">", before))
	eventually(t, func() int { return s.count("createOrUpdate", second) }).Should(BeNumerically(">", beforeSecond),
		"of all objects")
	before = s.settled(t, "createOrUpdate", m)
	g.Expect(platform.Delete(t.Context(), referenced)).To(Succeed())
	eventually(t, count).Should(BeNumerically(">", before), "a deletion")
	before = s.settled(t, "createOrUpdate", m)
	create("provider-secrets", "referenced")
	eventually(t, count).Should(BeNumerically(">", before), "a creation")
	g.Expect(sent(t, platform, p.name, "", "secrets", "")).NotTo(BeEmpty())
	for _, request := range sent(t, platform, p.name, "", "secrets", "") {
		g.Expect(request.ObjectRef.Namespace).NotTo(Equal("other-secrets"))
		g.Expect(request.ObjectRef.Namespace).NotTo(BeEmpty(), "no list of all Secrets")
	}
}

func TestConfigMapWatcher(t *testing.T) {
	g := NewWithT(t)
	const namespace, role = "provider-configmaps", "configmap-watcher"
	g.Expect(client.IgnoreAlreadyExists(platform.Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}))).To(Succeed())
	_, err := platform.cp.Kubectl(t.Context(), "create", "clusterrole", role, "--verb=list,watch", "--resource=configmaps")
	g.Expect(err).NotTo(HaveOccurred())
	t.Cleanup(func() {
		_, err := platform.cp.Kubectl(context.Background(), "delete", "clusterrole", role)
		g.Expect(err).NotTo(HaveOccurred())
	})
	name := newName(t)
	g.Expect(grantUser(t.Context(), platform, role, name)).To(Succeed())
	s := &service[*v1alpha1.Mailbox]{}
	startAs(t, name, s, func(o *options) {
		o.configMapNamespace = namespace
		o.isReferencedConfigMap = func(configMap *corev1.ConfigMap, config *v1alpha1.ProviderConfig) bool {
			return config != nil && configMap.Name == "defaults"
		}
	})
	m := order(t, "configmap")
	isReady(t, m)
	before := s.settled(t, "createOrUpdate", m)
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "other"}}
	referenced := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "defaults"}}
	t.Cleanup(func() {
		for _, configMap := range []*corev1.ConfigMap{other, referenced} {
			g.Expect(client.IgnoreNotFound(platform.Delete(context.Background(), configMap))).To(Succeed())
		}
	})
	g.Expect(platform.Create(t.Context(), other)).To(Succeed())
	barrier(t, "configmap")
	g.Expect(s.count("createOrUpdate", m)).To(Equal(before), "another ConfigMap")
	g.Expect(platform.Create(t.Context(), referenced)).To(Succeed())
	eventually(t, func() int { return s.count("createOrUpdate", m) }).Should(BeNumerically(">", before))
	requests := sent(t, platform, name, "", "configmaps", "")
	g.Expect(requests).NotTo(BeEmpty())
	g.Expect(requests).To(HaveEach(HaveField("ObjectRef.Namespace", namespace)), "no list of all ConfigMaps")
}
