"""What a person has of the API server's client (nodedevices_kube): contexts, exec plugins, our objects, advice."""
